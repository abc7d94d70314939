"""The batcher without a process: the models' real schedulers, and a clock that stands still unless somebody waits.

Whoever waits for an answer runs what is due, in its own thread: the test, or a model in the middle of its `execute`
that has asked another one. Where nothing is due the clock jumps to what is due next. Nothing of a model is ever called
with the lock held, so threads of a model may submit, answer and wait, too.
"""

import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

from shoal import reasons
from shoal.batcher.response_order import ResponseOrder, keeps_order
from shoal.batcher.scheduling import scheduler as scheduling
from shoal.batcher.scheduling.instances import FAST_NS
from shoal.errors import ShoalError, UnavailableError
from shoal.frontend.prepared import PreparedRequest
from shoal.reasons import Reason
from shoal.repository.lifecycle import ModelVersion
from shoal.testing.event_loop import VirtualEventLoop
from shoal.testing.instances import Instance
from shoal.testing.requests import Listener, OpenRequest
from shoal.testing.tensors import Answer
from shoal.workers.requests import RequestReader

#: Where the clock begins; 0 stands for "no time" here and there.
START_NS = 1_000_000_000
#: How long a thread that waits for sockets of coroutines sleeps between two looks at them.
_LOOK_S = 0.005

Work = Callable[[], None]
Telling = tuple[OpenRequest, Answer | None, bool]  # the last: whether that is all


class Batch(NamedTuple):
    """One execution."""

    model: str
    version: int
    instance: str  # "simple_0_0"
    request_ids: tuple[str, ...]  # of its requests, in their order
    rows: int
    time_ms: float  # on the server's clock, which begins at 0


@dataclass(eq=False)
class ServedModel:
    """A version of a model that is loaded."""

    version: ModelVersion
    scheduler: scheduling.Scheduler
    reader: RequestReader
    instances: Sequence[Instance]
    execution_ns: int  # how long one execution takes on this clock

    def unload(self) -> None:
        """Let go of it."""
        for instance in self.instances:
            instance.unload()


class StuckError(Exception):
    """A request will never be answered."""


class Batcher:
    """Every request from its submission to its last response."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long nothing may come from threads of models while somebody waits; real seconds."""
        self._patience_s = patience_s
        self._keys, self._order = count(1), count()
        #: Held while what follows is looked at or changed; notified when somebody who waits should look again.
        self.changed = threading.Condition()
        self.now_ns = START_NS
        self.batches: list[Batch] = []
        self._models: dict[int, ServedModel] = {}
        self._open: dict[int, OpenRequest] = {}
        self._orders: dict[int, ResponseOrder[Telling]] = {}  # by model, where it keeps one
        self._due: list[tuple[int, int, Work]] = []  # a heap
        self._left: deque[Work] = deque()  # by finalizers; changed without the lock, too
        self._executing: Counter[int] = Counter()  # thread → executions it is in the middle of

    def time_ns(self) -> int:
        """What the clock shows."""
        return self.now_ns

    @property
    def now_ms(self) -> float:
        """The clock since it began."""
        return (self.now_ns - START_NS) / 1e6

    # -- models and requests --------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self.changed:
            self.changed.notify_all()

    def add_model(self, model: ServedModel) -> None:
        """Requests may be submitted to it."""
        with self.changed:
            self._models[model.version.model_id] = model
            for number in range(len(model.instances)):
                model.scheduler.add_instance(number)
            if keeps_order(model.version.config):
                self._orders[model.version.model_id] = ResponseOrder()

    def remove_model(self, model_id: int) -> None:
        """Nothing more goes to its instances; what is queued fails, and what its coroutines and threads still have."""
        with self.changed:
            self._models.pop(model_id).scheduler.drain()
            left = [each for each in self._open.values() if each.prepared.entry.model_id == model_id]
        for request in left:
            if request.is_sent_for or not request.is_begun:  # what is being executed is answered all the same
                self._refuse(request, Reason.NOT_READY)

    def submit(self, prepared: PreparedRequest, listener: Listener) -> OpenRequest:
        """Queue a request; it runs when somebody waits. Raises UnavailableError where the queue is full."""
        with self.changed:
            model = self._models.get(prepared.entry.model_id)
            if model is None:
                raise _refusal(prepared, Reason.NOT_READY)
            request = OpenRequest(next(self._keys), prepared, model.reader, self.now_ns, listener)
            try:
                model.scheduler.add(request.queued, self.now_ns)
            except UnavailableError:
                raise _refusal(prepared, Reason.QUEUE_FULL) from None
            self._open[request.queued.key] = request
            self.changed.notify_all()
        return request

    def cancel(self, request: OpenRequest) -> None:
        """One that is queued fails; one that is executed is told, and ends as its model likes."""
        with self.changed:
            request.is_cancelled = True
            model = self._models.get(request.prepared.entry.model_id)
            is_gone = model is not None and model.scheduler.cancel(request.queued.key)
        if is_gone:
            self._refuse(request, Reason.CANCELLED)

    def queue_again(self, request: OpenRequest) -> None:
        """Back into its queue, unanswered."""
        with self.changed:
            model = self._models.get(request.prepared.entry.model_id)
            request.is_begun = request.is_sent_for = False
            if model is not None:
                model.scheduler.add_first(request.queued)
                self.changed.notify_all()
        if model is None:
            self._refuse(request, Reason.NOT_READY)

    def tell(self, request: OpenRequest, answer: Answer | None, *, is_final: bool) -> None:
        """One response to a request, an error in place of one, or its end alone; from any thread."""
        with self.changed:
            if not request.is_open:
                return
            request.is_open = not is_final
            tellings: list[Telling] = [(request, answer, is_final)]
            if self._orders and (order := self._orders.get(request.prepared.entry.model_id)) is not None:
                tellings = order.admit(request.queued.key, tellings[0], is_last=is_final)
        for whom, what, is_all in tellings:
            whom.tell(what, is_final=is_all)
        with self.changed:
            for whom, _, is_all in tellings:
                if is_all:
                    del self._open[whom.queued.key]
            self.changed.notify_all()

    def fail_later(self, request: OpenRequest, error: ShoalError) -> None:
        """The end of a request that nobody can answer any more, told by whoever waits next.

        A finalizer calls this, which runs in the middle of anything, so it waits for nothing.
        """
        self._left.append(partial(self.tell, request, error, is_final=True))
        if self.changed.acquire(blocking=False):  # else whoever has it looks again, or wakes who does
            self.changed.notify_all()
            self.changed.release()

    def _refuse(self, request: OpenRequest, reason: Reason) -> None:
        self.tell(request, _refusal(request.prepared, reason), is_final=True)

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, duration_ns: int) -> None:
        """Let time pass, and run all that is due meanwhile."""
        end_ns = self.now_ns + duration_ns
        self._run(lambda: False, end_ns)
        self.now_ns = max(self.now_ns, end_ns)

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run what is due until something has come true. Raises StuckError where it never will."""
        self._run(is_done, None)

    def run_until_idle(self) -> None:
        """Run until every request has been answered."""
        self._run(lambda: not self._open, None)

    def _run(self, is_done: Callable[[], bool], end_ns: int | None) -> None:
        looks_at_sockets = False
        while True:
            with self.changed:
                if is_done():
                    return
                work = self._next(end_ns, looks_at_sockets=looks_at_sockets)
                if work is None:
                    if end_ns is not None:
                        return
                    looks_at_sockets = self._wait()
                    continue
            looks_at_sockets = False
            work()

    def _wait(self) -> bool:
        """Nothing can be done in this thread now: leave it to others. True where the sockets of coroutines are due."""
        if self._left:
            return False
        me = threading.get_ident()
        is_elsewhere = any(thread != me for thread in self._executing)
        if not (is_elsewhere or any(request.is_sent_for for request in self._open.values())):
            raise StuckError(self._complaint("nothing more can happen"))
        if any(loop.has_sockets for loop in self._loops()):
            self.changed.wait(_LOOK_S)
            return True
        if not self.changed.wait(self._patience_s) and not self._left:
            raise StuckError(self._complaint(f"nothing has happened for {self._patience_s:g} s"))
        return False

    def _complaint(self, why: str) -> str:
        requests = [
            f"'{each.prepared.id}' to model '{each.prepared.entry.name}', which {each.activity}"
            for each in self._open.values()
        ]
        return f"{why}, and these requests have not been answered: {'; '.join(requests)}"

    # -- what is due ------------------------------------------------------------------------------------------------

    def _next(self, end_ns: int | None, *, looks_at_sockets: bool) -> Work | None:
        """What is to be done now, the clock set forward where nothing is; None where nothing is until `end_ns`."""
        while True:
            if self._left:
                return self._left.popleft()
            if self._due and self._due[0][0] <= self.now_ns:
                return heapq.heappop(self._due)[2]
            for model in self._models.values():
                if expired := model.scheduler.expire(self.now_ns):
                    return partial(self._expire, [self._open[each.key] for each in expired])
                batch = model.scheduler.take(self.now_ns)
                if batch is not None:
                    return self._begin(model, batch)
            for loop in self._loops():
                if loop.is_due(self.now_ns) or (looks_at_sockets and loop.has_sockets):
                    return loop.claim()
            due_ns = min([each for each in self._times() if each > self.now_ns], default=None)
            if due_ns is None or (end_ns is not None and due_ns > end_ns):
                return None
            self.now_ns = due_ns

    def _loops(self) -> Iterator[VirtualEventLoop]:
        """Those that no thread runs now."""
        for model in self._models.values():
            for instance in model.instances:
                for loop in instance.loops:
                    if not loop.is_claimed:
                        yield loop

    def _times(self) -> Iterator[int]:
        if self._due:
            yield self._due[0][0]
        for model in self._models.values():
            deadline_ns = model.scheduler.next_deadline_ns()
            if deadline_ns is not None:
                yield deadline_ns
        for loop in self._loops():
            if loop.due_ns is not None:
                yield loop.due_ns

    def _expire(self, requests: list[OpenRequest]) -> None:
        for request in requests:
            self._refuse(request, Reason.TIMED_OUT)

    def _begin(self, model: ServedModel, batch: scheduling.Batch) -> Work:
        requests = [self._open[each.key] for each in batch.requests]
        version, instance = model.version, model.instances[batch.instance]
        ids = tuple([request.prepared.id for request in requests])
        self.batches.append(Batch(version.name, version.version, instance.name, ids, batch.rows, self.now_ms))
        self._executing[threading.get_ident()] += 1
        if version.model_id in self._orders:
            self._orders[version.model_id].begin([each.key for each in batch.requests])
        for request in requests:
            request.is_begun = True
        return partial(self._execute, model, batch.instance, requests)

    def _execute(self, model: ServedModel, number: int, requests: list[OpenRequest]) -> None:
        start_ns, me = self.now_ns, threading.get_ident()
        try:
            answers = model.instances[number].execute(requests)
        finally:
            with self.changed:
                self._executing -= Counter((me,))
        with self.changed:
            # A model that has asked others has let the clock go on itself.
            end_ns = max(self.now_ns, start_ns + model.execution_ns)
            for position, request in enumerate(requests):
                request.is_sent_for = position not in answers and request.is_begun
            work: Work = partial(self._complete, model, number, requests, answers, end_ns - start_ns)
            heapq.heappush(self._due, (end_ns, next(self._order), work))
            self.changed.notify_all()

    def _complete(
        self,
        model: ServedModel,
        number: int,
        requests: list[OpenRequest],
        answers: Mapping[int, Answer],
        compute_ns: int,
    ) -> None:
        with self.changed:
            # Never so fast that an instance is given work ahead: it might be in the middle of an execution that waits.
            model.scheduler.complete(number, self.now_ns, max(compute_ns, FAST_NS))
        for position, answer in answers.items():
            self.tell(requests[position], answer, is_final=True)


def _refusal(prepared: PreparedRequest, reason: Reason) -> ShoalError:
    entry = prepared.entry
    return reasons.error_for(reason, model=entry.name, version=entry.version, request_id=prepared.id)
