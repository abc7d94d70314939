"""A server's batcher, clients and workers in one process: real exchange, rings and slabs, on a clock that a test holds.

The clock stands still until a thread waits for an answer: the test, or a model in the middle of its `execute` that has
asked another one. That thread then runs what is due; where nothing is due, the clock jumps to what is due next. No code
of a model is called with the lock held, so threads of a model may submit, answer and wait, too.
"""

import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count

from shoal.batcher.cached_responses import CachedResponses
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.exchange import Exchange
from shoal.batcher.peers import Client, Model
from shoal.errors import ShoalError
from shoal.messages.from_batcher import WorkerRetired
from shoal.model_config.response_cache import enables_response_cache
from shoal.reasons import Reason
from shoal.repository.lifecycle import ModelVersion
from shoal.shm import layout
from shoal.shm.counters import CACHE_FIGURES, CacheFigures
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import WORD
from shoal.shm.port import Port
from shoal.shm.segment import SegmentView
from shoal.testing.client import LocalClient, OpenRequest
from shoal.testing.event_loop import VirtualEventLoop
from shoal.testing.future import Batch, StuckError
from shoal.testing.instances import Instance
from shoal.testing.segments import MAX_IN_FLIGHT, SLAB_NBYTES, create_segment
from shoal.workers.segments import Segments
from shoal.workers.sentences import sentence_bytes

#: Where the clock begins; 0 stands for "no time" here and there.
START_NS = 1_000_000_000
#: How long a thread that waits for sockets of coroutines sleeps between two looks at them.
_LOOK_S = 0.005
#: Owner ids; those of instances follow.
_CLIENT, _BATCHER = 1, 2
#: Exceptions of models that are remembered until the error that was made of them has reached the test.
_MAX_CAUSES = 16

Work = Callable[[], None]


class Star:
    """Every request from its submission to its last response."""

    def __init__(self, patience_s: float, cache_bytes: int) -> None:
        """`patience_s`: how long nothing may come from threads of models while a thread waits; real seconds."""
        self._patience_s = patience_s
        self.bell = Doorbell.create()  # rung by all, heard by none: every ring is looked into
        #: Held while what follows is looked at or changed, but not while memory of a worker is; notified when threads
        #: that wait should look again.
        self.changed = threading.Condition()
        self.now_ns = START_NS
        self.batches: list[Batch] = []
        self.owners, self._order = count(_BATCHER + 1), count()  # owners: ids of instances
        self._instances: dict[int, Instance] = {}  # by owner
        self._due: list[tuple[int, int, Work]] = []  # a heap
        self._left: deque[Work] = deque()  # what no thread could wait for; changed without the lock, too
        self._executing: Counter[int] = Counter()  # thread → executions it is in the middle of
        self._causes: deque[tuple[str, BaseException]] = deque(maxlen=_MAX_CAUSES)
        # The segments of all, which every worker may read.
        self.segments = Segments()
        self.exchange = Exchange(0, 1 << 30)
        own, view = create_segment(layout.CLIENT, _CLIENT, SLAB_NBYTES)
        link, link_view = create_segment(layout.LINK, _CLIENT, 0)
        self._client = self.exchange.clients[_CLIENT] = Client(_CLIENT, link, view, self.bell, is_front_end=True)
        self._port = Port(own, link_view, self.bell, MAX_IN_FLIGHT)
        self.segments.add(_CLIENT, view)
        self.client = LocalClient(self, self._port)
        if cache_bytes:
            words = memoryview(bytearray(len(CACHE_FIGURES) * WORD)).cast("Q")
            self.exchange.enable_cache(CacheFigures(words, cache_bytes), self.time_ns)
        memory, view = create_segment(layout.BATCHER, _BATCHER, SLAB_NBYTES, 0)
        self.exchange.ensembles.connect(memory)
        self._open_segment(_BATCHER, view)

    def time_ns(self) -> int:
        """What the clock shows."""
        return self.now_ns

    @property
    def now_ms(self) -> float:
        """The clock since it began."""
        return (self.now_ns - START_NS) / 1e6

    def wake(self) -> None:
        """Wake the threads that wait, so that they look again."""
        with self.changed:
            self.changed.notify_all()

    def later(self, work: Work) -> None:
        """Leave work to the thread that waits next.

        A finalizer calls this, which runs in the middle of anything, so it waits for nothing.
        """
        self._left.append(work)
        if self.changed.acquire(blocking=False):  # else the thread that has it looks again, or wakes one that does
            self.changed.notify_all()
            self.changed.release()

    # -- models and requests --------------------------------------------------------------------------------------

    def sharing(self, version: ModelVersion, revision: str = "") -> CachedResponses | None:
        """The response cache, or None where the server has none or the model does not enable it. `revision` names what
        answers depend on beside the version."""
        if self.exchange.cached is None or not enables_response_cache(version.config):
            return None
        self.exchange.cached.name(version.model_id, revision, self.now_ns)
        return self.exchange.cached

    def add_model(self, model: Model, instances: Sequence[Instance]) -> None:
        """Let requests to a model come, and batches go to its instances."""
        with self.changed:
            if isinstance(model, Ensemble):
                self.exchange.add_ensemble(model)
            else:
                self.exchange.models[model.id] = model
            for instance in instances:
                self._instances[instance.worker.owner] = instance
                self._open_segment(instance.worker.owner, instance.view)
                self.exchange.add_worker(instance.worker, self.now_ns)

    def _open_segment(self, owner: int, view: SegmentView) -> None:
        self.segments.add(owner, view)
        self._port.add_segment(owner, view)

    def remove_model(self, model: Model) -> None:
        """Refuse the requests that are queued for a model, or left to its coroutines and threads. An instance that is
        executing answers first; then, or at once, its backend is unloaded."""
        with self.changed:
            for instance in [each for each in self._instances.values() if each.worker.model is model]:
                if instance.is_busy:
                    self.exchange.retire_worker(instance.worker.owner)
                else:
                    self._remove(instance)
            self.exchange.remove_model(model.id, self.now_ns)
            self.admit()
        self._do_left()

    def _remove(self, instance: Instance) -> None:
        """Fail the requests that an instance has not answered; the thread that waits next unloads its backend."""
        self.exchange.remove_worker(instance.worker.owner, self.now_ns, Reason.NOT_READY)
        self.admit()  # replies that lie in its segment are read before that goes
        del self._instances[instance.worker.owner]
        self._port.remove_segment(instance.worker.owner)
        self.segments.remove(instance.worker.owner)
        self._left.append(instance.unload)

    def close(self) -> None:
        """Unload instances that are in the middle of an execution, too."""
        with self.changed:
            for instance in list(self._instances.values()):
                self._remove(instance)
        self._do_left()

    def _do_left(self) -> None:
        while self._left:
            self._left.popleft()()

    def admit(self) -> None:
        """Let the exchange read new requests and cancellations. No batch is formed before time passes."""
        with self.changed:
            self.exchange.look_at_clients(self.now_ns)
            for peer in (*self.exchange.workers.values(), self._client):
                peer.flush()
            self.client.deliver()
            self.changed.notify_all()

    def note_cause(self, failure: ShoalError, error: BaseException) -> None:
        """Remember the exception that a model's error was made of."""
        self._causes.append((sentence_bytes(failure).decode(errors="replace"), error))

    def with_cause(self, error: ShoalError) -> ShoalError:
        """Give an error of a client the exception of a model as its cause, if that is known. The error's sentence ends
        with the model's: an ensemble puts words in front."""
        for said in reversed(self._causes):
            if str(error).endswith(said[0]):
                error.__cause__ = said[1]
                break
        return error

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, duration_ns: int) -> None:
        """Let time pass, and run all that is due meanwhile."""
        end_ns = self.now_ns + duration_ns
        self.run_until(lambda: False, end_ns)
        self.now_ns = max(self.now_ns, end_ns)

    def at(self, due_ns: int, work: Work) -> None:
        """Schedule work for a time of the clock."""
        with self.changed:
            heapq.heappush(self._due, (due_ns, next(self._order), work))

    def step(self) -> None:
        """Move all records that are there, form batches, hand out answers."""
        with self.changed:
            before = self._num_records
            self.exchange.step(self.now_ns)
            self.client.deliver()
            if self._num_records != before:
                self.changed.notify_all()
            for report in self.exchange.reports:
                if isinstance(report, WorkerRetired) and report.owner in self._instances:
                    self._remove(self._instances[report.owner])
            self.exchange.reports.clear()

    @property
    def _num_records(self) -> int:
        """How many records the exchange has sent so far, to all peers."""
        return sum([each.writer.position for each in (self._client, *self.exchange.workers.values())])

    def run_until(self, is_done: Callable[[], bool], end_ns: int | None = None) -> None:
        """Run what is due until something has come true, or up to a time. Raises StuckError where it never will."""
        looks_at_sockets = False
        while True:
            with self.changed:
                if is_done():
                    return
                self.step()
                if is_done():
                    return
                work = self._next(looks_at_sockets=looks_at_sockets)
                if work is None:
                    due_ns = min([each for each in self._times() if each > self.now_ns], default=None)
                    if due_ns is not None and (end_ns is None or due_ns <= end_ns):
                        self.now_ns = due_ns
                    elif end_ns is not None:
                        return
                    else:
                        looks_at_sockets = self._wait()
                    continue
            looks_at_sockets = False
            try:
                work()
            finally:
                self.wake()

    def _wait(self) -> bool:
        """Wait for other threads. Returns whether the sockets of coroutines are to be looked at next. Raises StuckError
        where no thread can go on, or none has for too long."""
        if self._left:
            return False
        me = threading.get_ident()
        is_elsewhere = any(thread != me for thread in self._executing)
        if not (is_elsewhere or any(each.is_awaited for each in self._instances.values())):
            raise StuckError(self._complaint("nothing more can happen"))
        if any(loop.has_sockets for loop in self._loops()):
            self.changed.wait(_LOOK_S)
            return True
        if not self.changed.wait(self._patience_s) and not self._left:
            raise StuckError(self._complaint(f"nothing has happened for {self._patience_s:g} s"))
        return False

    def _complaint(self, why: str) -> str:
        requests = [
            f"'{each.outgoing.ask.id}' to model '{each.outgoing.entry.name}', which {self._activity(number, each)}"
            for number, each in self.client.open.items()
        ]
        return f"{why}, and these requests have not been answered: {'; '.join(requests)}"

    def _activity(self, number: int, request: OpenRequest) -> str:
        key, model = self._client.first_key + number, self.exchange.models.get(request.outgoing.entry.model_id)
        steps = [] if model is None else self.exchange.ensembles.running(key, model)
        names = [step.signature.name for _, step in steps if step.signature is not None]
        if names:
            return f"waits for its steps: {', '.join(names)}"
        for worker in self.exchange.workers.values():
            if (running := worker.missing.get(key)) is not None:
                return "was executed, and keeps it open" if running.is_executed else "is executing it"
        return "has it in its queue"

    # -- what is due ------------------------------------------------------------------------------------------------

    def _next(self, *, looks_at_sockets: bool) -> Work | None:
        """The next piece of work that is due now; None where nothing is."""
        if self._left:
            return self._left.popleft()
        if self._due and self._due[0][0] <= self.now_ns:
            return heapq.heappop(self._due)[2]
        for instance in self._instances.values():
            if instance.memory.has_mail and not instance.is_executing:
                instance.is_executing = True
                self._executing[threading.get_ident()] += 1
                return partial(self._execute, instance)
        for loop in self._loops():
            if loop.is_due(self.now_ns) or (looks_at_sockets and loop.has_sockets):
                return loop.claim()
        return None

    def _loops(self) -> Iterator[VirtualEventLoop]:
        """The event loops that no thread runs now."""
        for instance in self._instances.values():
            if instance.event_loop is not None and not instance.event_loop.is_claimed:
                yield instance.event_loop

    def _times(self) -> Iterator[int]:
        if self._due:
            yield self._due[0][0]
        if (deadline_ns := self.exchange.next_deadline_ns()) is not None:
            yield deadline_ns
        for loop in self._loops():
            if loop.due_ns is not None:
                yield loop.due_ns

    def _execute(self, instance: Instance) -> None:
        try:
            # A model that is executed while another waits for it is not what the other's calls are made for.
            copy_context().run(instance.execute)
        finally:
            with self.changed:
                instance.is_executing = False
                self._executing -= Counter((threading.get_ident(),))
