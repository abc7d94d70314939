"""A scheduler whose batches wait for the rate limiter; with --rate-limit=execution_count, in front of every model's
scheduler.

A batch of the model's own scheduler is staged, and leaves when its instance has been allocated the resources that it
needs. The model's own scheduler regards an instance with a staged batch as busy. Staged requests can be cancelled, and
expire as they would in the queue; no further requests join a staged batch. Pure policy, runs in the batcher.
"""

from collections import deque

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.forwarding import ForwardingScheduler
from shoal.batcher.scheduling.instances import FAST_NS
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limiter import RateLimiter


class RateLimitedScheduler(ForwardingScheduler):
    """The staging of another scheduler's batches. See `Scheduler` for the contract of each method."""

    __slots__ = ("_expiring", "_left_idle", "_limiter", "_rejects", "_staged")

    def __init__(self, scheduler: Scheduler, limiter: RateLimiter) -> None:
        super().__init__(scheduler)
        self._limiter = limiter
        self._rejects = scheduler.rejects
        # Changed by take, cancel, remove_instance and drain. Instance → its staged batches, if any.
        self._staged: dict[int, deque[Batch]] = {}
        #: Key → when a staged request expires, and the request.
        self._expiring: dict[int, tuple[int, QueuedRequest]] = {}
        #: Instances whose staged batches have lost all their requests; the model's own scheduler still regards these
        #: instances as busy.
        self._left_idle: list[int] = []

    @property
    def pending(self) -> int:
        if not self._staged:
            return self.behind.pending
        staged = sum([len(batch.requests) for batches in self._staged.values() for batch in batches])
        return self.behind.pending + staged

    def oldest_ns(self) -> int:
        if not self._staged:
            return self.behind.oldest_ns()
        arrivals = [
            each.arrival_ns for batches in self._staged.values() for batch in batches for each in batch.requests
        ]
        oldest_ns = self.behind.oldest_ns()
        return min([*arrivals, oldest_ns] if oldest_ns else arrivals, default=0)

    def rows_before(self, request: QueuedRequest) -> int | None:
        rows = self.behind.rows_before(request)
        if rows is None:
            return None
        staged = sum([batch.rows for batches in self._staged.values() for batch in batches])
        return staged + rows

    def take(self, now_ns: int) -> Batch | None:
        """The next batch that may run now; None if there is none. Batches that may not run yet are staged."""
        for instance, batches in self._staged.items():
            if self._limiter.begin(instance):
                batch = batches.popleft()
                if not batches:
                    del self._staged[instance]
                return self._begin(batch)
        while self._left_idle:
            self.behind.complete(self._left_idle.pop(0), now_ns, FAST_NS)  # this time counts as neither short nor long
        while (taken := self.behind.take(now_ns)) is not None:
            if not self._limiter.is_limited(taken.instance):
                return self._begin(taken)
            self._staged.setdefault(taken.instance, deque()).append(taken)
            self._limiter.stage(taken.instance)
            if self._rejects:
                for request in taken.requests:
                    if expiry_ns := self.behind.expiry_ns(request):
                        self._expiring[request.key] = expiry_ns, request
        return None

    def _begin(self, batch: Batch) -> Batch:
        """Forget the expiry of a batch's requests, which are executed now, perhaps by another instance than the one for
        which they were staged."""
        if self._expiring:
            for request in batch.requests:
                self._expiring.pop(request.key, None)
        return batch

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        late = [request for expiry_ns, request in self._expiring.values() if expiry_ns <= now_ns]
        for request in late:
            self.cancel(request.key)
        return late + self.behind.expire(now_ns)

    def cancel(self, key: int) -> bool:
        self._expiring.pop(key, None)
        if self.behind.cancel(key):
            return True
        for instance, batches in self._staged.items():
            for index, batch in enumerate(batches):
                left = tuple([request for request in batch.requests if request.key != key])
                if len(left) == len(batch.requests):
                    continue
                if self.sequences is not None:
                    self.sequences.miss(instance, key)
                if left:
                    batches[index] = Batch(instance, left, sum([request.rows for request in left]))
                else:
                    del batches[index]
                    self._give_up(instance)
                return True
        return False

    def _give_up(self, instance: int) -> None:
        """Note that one staged batch of the instance is dropped."""
        if not self._staged[instance]:
            del self._staged[instance]
        self._limiter.unstage(instance)
        self._left_idle.append(instance)

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self._limiter.release(instance)
        self.behind.complete(instance, now_ns, compute_ns)

    def next_deadline_ns(self) -> int | None:
        due_ns = self.behind.next_deadline_ns()
        if not self._expiring:
            return due_ns
        expiry_ns = min([expiry_ns for expiry_ns, _ in self._expiring.values()])
        return expiry_ns if due_ns is None else min(due_ns, expiry_ns)

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        self._limiter.hold(instance, num_running)
        self.behind.add_instance(instance, num_running)

    def remove_instance(self, instance: int) -> None:
        """Remove an instance: its staged batches return to the front of the queue; its execution goes on."""
        staged = self._staged.pop(instance, ())
        if self.sequences is not None:  # sequences that have not begun will begin on another instance
            for request in [request for batch in staged for request in batch.requests]:
                self.sequences.give_back(instance, request)
        self.behind.remove_instance(instance)
        for batch in reversed(staged):
            self._limiter.unstage(instance)
            for request in reversed(batch.requests):
                self.behind.add_first(request)

    def drain(self) -> list[QueuedRequest]:
        staged = [request for batches in self._staged.values() for batch in batches for request in batch.requests]
        for instance in [instance for instance, batches in self._staged.items() for _ in batches]:
            self._staged[instance].pop()
            self._give_up(instance)
        self._expiring.clear()
        return staged + self.behind.drain()
