"""What the batcher sends the supervisor (supervisor/supervisor.py), beside acknowledgements.

BatcherConnected first: it stands by, with all its imports done
"""

from typing import Any

from shoal.messages.message import Message


class BatcherConnected(Message):
    """The process stands by, and waits for BatcherActivated."""


class ProcessDistrusted(Message):
    """A client or a worker has written what cannot be: nothing more of it is read, and its process is to end."""

    owner: int


class WorkerRetired(Message):
    """A worker that was to get no more batches has none left."""

    owner: int


class ModelRetired(Message):
    """A model version that was to get no more requests has none left."""

    model_id: int


class ModelExplained(Message):
    """Why the last batches of a model version had their size; answers ExplainModel."""

    model_id: int
    explanation: dict[str, Any]
