"""Messages from the batcher to the supervisor (supervisor/supervisor.py), beside acknowledgements.

BatcherConnected first: it stands by, with all its imports done
"""

from typing import Any

from shoal.messages.message import Message


class BatcherConnected(Message):
    """A batcher has started, stands by, and waits for BatcherActivated."""


class ProcessDistrusted(Message):
    """A client or a worker has written an invalid record: its ring is no longer read, and its process must be ended."""

    owner: int


class WorkerRetired(Message):
    """A retired worker has answered all its batches."""

    owner: int


class ModelRetired(Message):
    """A retired model version has no request left."""

    model_id: int


class ModelExplained(Message):
    """The reasons for the sizes of a version's last batches; answers ExplainModel. The explanation is for clients, as
    JSON (batcher/scheduling/contract.py)."""

    model_id: int
    explanation: dict[str, Any]
