"""Groups of queued requests: a payload (Triton's word) while it waits for an instance, a batch once it has one.

Pure policy, runs in the batcher.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from shoal.batcher.scheduling.queue import QueuedRequest


class Batch(NamedTuple):
    """One execution: the requests that one instance is to run at once, in this order."""

    instance: int
    requests: tuple[QueuedRequest, ...]
    rows: int


#: Makes a Batch of its three fields as a tuple: 1k instructions instead of 3k.
make_batch: Final[Callable[[tuple[int, tuple[QueuedRequest, ...], int]], Batch]] = partial(tuple.__new__, Batch)


class Payload:
    """Requests that will run together, all of one shape key, oldest first; never empty while it waits."""

    __slots__ = ("reason", "requests", "rows", "saturated", "shape_key")

    def __init__(self, shape_key: int) -> None:
        self.shape_key = shape_key
        # Changed by the scheduler until an instance takes the payload: the requests, and the sum of their rows.
        self.requests: list[QueuedRequest] = []
        self.rows = 0
        #: Whether a request of another shape came next: no later payload may be merged into this one, nor this one into
        #: another.
        self.saturated = False
        #: The reason for the payload's size (batch_account.py).
        self.reason = 0

    def merge(self, other: "Payload") -> None:
        """Append the requests of another payload of the same shape; the other payload must not be used afterwards."""
        self.requests += other.requests
        self.rows += other.rows

    def cancel(self, key: int) -> bool:
        """Remove a request from this payload, which may be empty then. False if the request is not in this payload."""
        for index, request in enumerate(self.requests):
            if request.key == key:
                del self.requests[index]
                self.rows -= request.rows
                return True
        return False
