"""Trials in front of a model's scheduler: requests whose contents are suspects run alone, one after another.

The batcher puts this scheduler in front of a model's own at the first death that a request may be the reason for
(poison.py), so that other models do not pay for it. Rules: one trial at a time, so that other instances serve ordinary
requests meanwhile; after a death, and until an execution has ended, no trial begins while ordinary requests are queued;
requests whose content is on trial wait for the outcome, and are then refused or queued. A waiting request can be
cancelled, and expires as in the queue. See `Scheduler` for the contract of each method. Pure policy, runs in the
batcher.
"""

from collections.abc import Callable

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.forwarding import ForwardingScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.suspects import Content, Digest, PoisonError, Suspects
from shoal.errors import UnavailableError

#: Most requests that wait for a trial (ours); further ones are refused as if the queue were full.
MAX_WAITING = 1024
#: A trial delays the next one for at most this time (ours).
LONGEST_NS = 10_000_000_000
#: Later than any time.
NEVER = 1 << 63
#: How often old suspects are looked for and forgotten (ours).
_LOOK_NS = 1_000_000_000


class TrialScheduler(ForwardingScheduler):
    """Trials in front of another scheduler, which need not know of them."""

    __slots__ = (
        "_are_others_first", "_late", "_look_ns", "_read", "_tried", "_waiting", "suspects", "trials",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        suspects: Suspects,
        read: Callable[[int], Content | None],
        tried: "dict[int, TrialScheduler | None]",
    ) -> None:
        """`read` returns the content of an open request, by its key; None if it cannot be read. `tried` gets the keys
        of requests on trial, each with this scheduler, whose `ended` is to be called for it."""
        super().__init__(scheduler)
        self.suspects = suspects
        self._read = read
        self._tried = tried
        # Changed by every method that adds or removes requests. Key → request, and the sample of its content.
        # `_are_others_first`: an instance has died and no execution has ended since; `_look_ns`: when old suspects are
        # looked for next.
        self._waiting: dict[int, tuple[QueuedRequest, Digest]] = {}
        #: Requests on trial: key → the sample, and when an instance was given the request; 0 = not yet.
        self.trials: dict[int, tuple[Digest, int]] = {}
        #: Requests that waited for a trial, may be executed now, and found the queue full.
        self._late: list[QueuedRequest] = []
        self._are_others_first = False
        self._look_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether no suspect and no request is left here, so that this scheduler may be removed."""
        return not (self.suspects or self._waiting or self.trials or self._late)

    @property
    def pending(self) -> int:
        return self.behind.pending + len(self._waiting)

    def oldest_ns(self) -> int:
        oldest_ns = self.behind.oldest_ns()
        if not self._waiting:
            return oldest_ns
        waiting_ns = min([request.arrival_ns for request, _ in self._waiting.values()])
        return min(oldest_ns, waiting_ns) if oldest_ns else waiting_ns

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        if self.suspects:
            if now_ns >= self._look_ns:
                self._look_ns = now_ns + _LOOK_NS
                self.suspects.forget_old(now_ns)
            content = self._read(request.key)
            if content is not None and self.suspects.is_suspect(content.sample):
                self._withdraw(request.key)
                refusal = self.suspects.refusal(content, now_ns)
                if refusal is not None:
                    raise refusal
                if len(self._waiting) >= MAX_WAITING:
                    raise UnavailableError("Exceeds maximum queue size")
                self._waiting[request.key] = request, content.sample
                return
        self.behind.add(request, now_ns)

    def add_first(self, request: QueuedRequest) -> None:
        """Accept again a request whose instance died. If its content is a suspect, the request waits for a trial,
        unless `refused` returns it."""
        self._withdraw(request.key)
        content = self._read(request.key)
        if content is not None and self.suspects.is_suspect(content.sample):
            self._waiting = {request.key: (request, content.sample), **self._waiting}
        else:
            self.behind.add_first(request)

    def _withdraw(self, key: int) -> None:
        """End the trial of a request that returns to the queue without an outcome."""
        if self.trials.pop(key, None) is not None:
            self._tried[key] = None

    def died(self) -> None:
        """Note the death of an instance: until an execution has ended, no trial begins while ordinary requests are
        queued."""
        self._are_others_first = True

    def refused(self, now_ns: int) -> list[tuple[QueuedRequest, PoisonError]]:
        """Remove and return the waiting requests whose contents are convicted now, with their refusals. To be called
        after every death."""
        refused = []
        for key, (request, sample) in tuple(self._waiting.items()):
            content = self._read(key) if self.suspects.is_suspect(sample) else None
            refusal = None if content is None else self.suspects.refusal(content, now_ns)
            if refusal is not None:
                del self._waiting[key]
                refused.append((request, refusal))
        return refused

    def ended(self, key: int, now_ns: int, *, has_lived: bool) -> None:
        """Note that a request on trial has ended; with `has_lived` it was answered, so its instance is alive."""
        trial = self.trials.pop(key, None)
        if trial is not None and has_lived:
            self.suspects.lived(trial[0], now_ns)
            self._release(now_ns)

    def take(self, now_ns: int) -> Batch | None:
        if self._waiting and self._due_ns() <= now_ns and (key := self._next()) is not None:
            self._begin(key)
        batch = self.behind.take(now_ns)
        if batch is not None and self.trials:
            for request in batch.requests:
                if request.key in self.trials:
                    self.trials[request.key] = self.trials[request.key][0], now_ns
        return batch

    def _release(self, now_ns: int) -> None:
        """Queue the waiting requests whose content is no suspect any more."""
        for key, (request, sample) in tuple(self._waiting.items()):
            if not self.suspects.is_suspect(sample):
                del self._waiting[key]
                try:
                    self.behind.add(request, now_ns)
                except UnavailableError:
                    self._late.append(request)

    def _due_ns(self) -> int:
        """When the next trial may begin, in monotonic ns; NEVER while the last trial has no instance yet or, after a
        death, while ordinary requests are queued."""
        if self._are_others_first and self.behind.pending:
            return NEVER
        began_ns = [began_ns for _, began_ns in self.trials.values()]
        return NEVER if 0 in began_ns else max(began_ns, default=-LONGEST_NS) + LONGEST_NS

    def _next(self) -> int | None:
        """The key of the request that is tried next: the first whose content is not on trial; None if there is none."""
        on_trial = {sample for sample, _ in self.trials.values()}
        return next((key for key, (_, sample) in self._waiting.items() if sample not in on_trial), None)

    def _begin(self, key: int) -> None:
        request, sample = self._waiting.pop(key)
        self.trials[key] = sample, 0
        self._tried[key] = self
        self.behind.add_first(request)

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        expired, self._late = self._late + self.behind.expire(now_ns), []
        for key, (request, _) in tuple(self._waiting.items()):
            if 0 < request.deadline_ns <= now_ns or 0 < self.behind.expiry_ns(request) <= now_ns:
                del self._waiting[key]
                expired.append(request)
        return expired

    def cancel(self, key: int) -> bool:
        return self._waiting.pop(key, None) is not None or self.behind.cancel(key)

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        self._are_others_first = False
        self.behind.complete(instance, now_ns, compute_ns)

    def next_deadline_ns(self) -> int | None:
        if self._late:
            return 1
        due_ns = self.behind.next_deadline_ns()
        if not self._waiting:
            return due_ns
        times_ns = [NEVER if due_ns is None else due_ns]
        if self._next() is not None:
            times_ns.append(self._due_ns())
        for request, _ in self._waiting.values():
            times_ns += [each for each in (request.deadline_ns, self.behind.expiry_ns(request)) if each]
        earliest_ns = min(times_ns)
        return None if earliest_ns == NEVER else earliest_ns

    def drain(self) -> list[QueuedRequest]:
        waiting = [request for request, _ in self._waiting.values()] + self._late
        self._waiting.clear()
        self._late = []
        return sorted(waiting + self.behind.drain(), key=lambda each: each.arrival_ns)
