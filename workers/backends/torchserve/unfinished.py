"""Requests that their handler has not finished: with continuous batching, each is executed again and again, with
others, until its stopping criterion holds.

A request is known by its slot in the sequence batcher, which it keeps to its end, so there are at most as many as
slots: a request that was cancelled between two executions is forgotten when its slot gets another. Runs in a worker.
"""

from typing import NamedTuple

from shoal.workers.backends.torchserve.calls import Call
from shoal.workers.requests import Request
from shoal.workers.sequences import slot_of


class Execution(NamedTuple):
    """A request before one of its executions: the handler's data, and how many parts have been sent."""

    call: Call
    num_parts: int


class UnfinishedRequests:
    """The unfinished requests of one worker."""

    def __init__(self) -> None:
        self._by_slot: dict[int, tuple[int, Execution]] = {}  # with their keys; changed by keep and take

    def keep(self, request: Request, call: Call, num_parts: int) -> None:
        """Keep a request for its next execution, whose data is an empty dict, as in TorchServe. Its memory is not kept:
        the next execution comes with it."""
        self._by_slot[slot_of(request.record)] = request.key, Execution(call._replace(data={}), num_parts)

    def take(self, request: Request) -> Execution | None:
        """The request as it was kept, headers and id with it; None for one that is executed for the first time."""
        key, execution = self._by_slot.pop(slot_of(request.record), (0, None))
        return None if execution is None or key != request.key else execution
