"""Deadlines in front of any scheduler: a request that would be late is refused at once, and a queued request that has
become late is removed.

The batcher puts this scheduler in front of a model's own when the model gets its first request with a deadline, so that
other models do not pay for it. Rules: a request leaves the queue when it could no longer be executed in time or, while
execution times are not known, at its deadline. A request that was given to an instance is executed. While an instance
is idle no request is refused. See `Scheduler` for the contract of each method. Pure policy, runs in the batcher.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from shoal.batcher.scheduling.admission import Admission, LateError
from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.forwarding import ForwardingScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest

#: Deadlines of requests that have left are removed once they outnumber the valid deadlines by this many (ours).
_MAX_STALE = 64


class _Waiting(NamedTuple):
    """A request that has a deadline; the serial number tells it from an earlier request of the same key."""

    request: QueuedRequest
    serial: int


class DeadlineScheduler(ForwardingScheduler):
    """Deadlines in front of another scheduler, which need not know of them."""

    __slots__ = ("_admission", "_deadlines", "_serial", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._admission = Admission()
        # Changed by every method that adds or removes requests: the queued requests with deadlines, by key.
        self._waiting: dict[int, _Waiting] = {}
        #: A heap of (when a request leaves, serial number, key); requests that have left stay until they reach the top.
        self._deadlines: list[tuple[int, int, int]] = []
        self._serial = count()

    @property
    def heeds_deadlines(self) -> bool:
        return True

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        leave_ns = self._admit(request, now_ns)
        self.behind.add(request, now_ns)
        if leave_ns:
            self._watch(request, leave_ns)

    def _admit(self, request: QueuedRequest, now_ns: int) -> int:
        """The time at which a new request will leave the queue; 0 = never. Raises LateError if the request would be
        late."""
        deadline_ns = request.deadline_ns
        expiry_ns = self.behind.expiry_ns(request)
        if not (deadline_ns or expiry_ns):
            return 0
        rows = self.behind.rows_before(request)
        wait_ns = 0 if rows is None else self._admission.wait_ns(rows, now_ns)
        if not wait_ns:
            return deadline_ns
        if expiry_ns and now_ns + wait_ns > expiry_ns:
            raise LateError(wait_ns, expiry_ns - now_ns)
        execution_ns = self._admission.execution_ns
        if deadline_ns and now_ns + wait_ns + execution_ns > deadline_ns:
            raise LateError(wait_ns + execution_ns, max(0, deadline_ns - now_ns))
        return deadline_ns and deadline_ns - execution_ns

    def add_first(self, request: QueuedRequest) -> None:
        self.behind.add_first(request)
        if request.deadline_ns:
            self._watch(request, request.deadline_ns)

    def _watch(self, request: QueuedRequest, leave_ns: int) -> None:
        serial = next(self._serial)
        self._waiting[request.key] = _Waiting(request, serial)
        heappush(self._deadlines, (leave_ns, serial, request.key))
        if len(self._deadlines) > 2 * len(self._waiting) + _MAX_STALE:
            self._deadlines = [each for each in self._deadlines if self._is_current(each)]
            heapify(self._deadlines)

    def take(self, now_ns: int) -> Batch | None:
        batch = self.behind.take(now_ns)
        if batch is not None:
            self._admission.begin(batch.instance, batch.rows, now_ns)
            for request in batch.requests:
                self._waiting.pop(request.key, None)
        return batch

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        expired = self.behind.expire(now_ns)
        for request in expired:
            self._waiting.pop(request.key, None)
        while (leave_ns := self._next_ns()) is not None and leave_ns <= now_ns:
            _, _, key = heappop(self._deadlines)
            request, _ = self._waiting.pop(key)
            if self.behind.cancel(key):
                expired.append(request)
        return expired

    def cancel(self, key: int) -> bool:
        self._waiting.pop(key, None)
        return self.behind.cancel(key)

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self._admission.complete(instance, now_ns)
        self.behind.complete(instance, now_ns, compute_ns)

    def next_deadline_ns(self) -> int | None:
        due_ns, leave_ns = self.behind.next_deadline_ns(), self._next_ns()
        if due_ns is None or leave_ns is None:
            return leave_ns if due_ns is None else due_ns
        return min(due_ns, leave_ns)

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        self._admission.add_instance(instance)
        self.behind.add_instance(instance, num_running)

    def remove_instance(self, instance: int) -> None:
        self._admission.remove_instance(instance)
        self.behind.remove_instance(instance)

    def drain(self) -> list[QueuedRequest]:
        self._waiting.clear()
        self._deadlines.clear()
        return self.behind.drain()

    def _next_ns(self) -> int | None:
        """The time at which the next request leaves; None if none does."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _is_current(self, deadline: tuple[int, int, int]) -> bool:
        _, serial, key = deadline
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.serial == serial
