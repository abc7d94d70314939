"""Messages from the batcher to the supervisor (supervisor/supervisor.py), beside acknowledgements.

BatcherConnected first: it stands by, with all its imports done
"""

from typing import Any

from shoal.messages.message import Message


class BatcherConnected(Message):
    """A batcher has started, stands by, and waits for BatcherActivated."""


class ProcessDistrusted(Message):
    """A client or a worker has written an invalid record: its ring is read no more, and its process is to be ended."""

    owner: int


class WorkerRetired(Message):
    """A worker that was to get no more batches has answered all it had."""

    owner: int


class ModelRetired(Message):
    """A model version that was to get no more requests has none left."""

    model_id: int


class ModelExplained(Message):
    """The reasons for the sizes of a version's last batches; answers ExplainModel. The explanation is for clients, as
    JSON (batcher/scheduling/contract.py)."""

    model_id: int
    explanation: dict[str, Any]
