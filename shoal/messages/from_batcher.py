"""Messages from the batcher to the supervisor (supervisor/supervisor.py), besides acknowledgements.

BatcherConnected comes first: the batcher stands by, with all its imports done.
"""

from collections.abc import Sequence
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

    number: int  # the number of the question that is answered
    model_id: int
    explanation: dict[str, Any]


class RequestsMirrored(Message):
    """The mirrored requests of a pair of versions since the last such message: the number that was `mirrored`, and the
    numbers that were dropped by reason (batcher/mirror.py)."""

    model: str
    primary: int
    shadow: int
    counts: dict[str, int]


class SplitFigures(Message):
    """The figures of both versions of a split since a step of its rollout began, as VersionFigures.packed returns them
    (batcher/scheduling/split.py); answers CountSplit."""

    model_id: int  # the split's own
    step: int
    stable: list[int]
    canary: list[int]
    waiting: list[int]  # of each request that the canary has now: the bucket of the time since its arrival


class FinishedRequestsListed(Message):
    """Requests of the models that ListFinishedRequests has named: the slowest, the slowest first; the failed ones, the
    last first; and how many more have failed. Each request is a FinishedRequest (shoal/finished_request.py)."""

    number: int  # the number of the question that is answered
    slowest: Sequence[Any]
    failed: Sequence[Any]
    num_others_failed: int
