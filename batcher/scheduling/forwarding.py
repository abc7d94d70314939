"""A scheduler in front of another scheduler, to which it passes every call on.

Subclasses override the methods that they change. Each method of `Scheduler` must be forwarded here; otherwise the
contract's default would hide the method of the policy behind. Pure policy, runs in the batcher.
"""

from typing import Any

from shoal.batcher.scheduling.contract import Scheduler, Sequences
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest


class ForwardingScheduler(Scheduler):
    """A scheduler that forwards every call to another one. See `Scheduler` for the contract of each method."""

    __slots__ = ("behind",)

    def __init__(self, scheduler: Scheduler) -> None:
        self.behind = scheduler  # the scheduler behind this one

    @property
    def pending(self) -> int:
        return self.behind.pending

    def oldest_ns(self) -> int:
        return self.behind.oldest_ns()

    def rows_before(self, request: QueuedRequest) -> int | None:
        return self.behind.rows_before(request)

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        self.behind.add(request, now_ns)

    def add_first(self, request: QueuedRequest) -> None:
        self.behind.add_first(request)

    def take(self, now_ns: int) -> Batch | None:
        return self.behind.take(now_ns)

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        return self.behind.expire(now_ns)

    def cancel(self, key: int) -> bool:
        return self.behind.cancel(key)

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self.behind.complete(instance, now_ns, compute_ns)

    def next_deadline_ns(self) -> int | None:
        return self.behind.next_deadline_ns()

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        self.behind.add_instance(instance, num_running)

    def remove_instance(self, instance: int) -> None:
        self.behind.remove_instance(instance)

    def drain(self) -> list[QueuedRequest]:
        return self.behind.drain()

    @property
    def rejects(self) -> bool:
        return self.behind.rejects

    def expiry_ns(self, request: QueuedRequest) -> int:
        return self.behind.expiry_ns(request)

    @property
    def batch_rows(self) -> int:
        return self.behind.batch_rows

    @property
    def heeds_deadlines(self) -> bool:
        return self.behind.heeds_deadlines

    @property
    def sequences(self) -> Sequences | None:
        return self.behind.sequences

    def explain(self) -> dict[str, Any]:
        return self.behind.explain()
