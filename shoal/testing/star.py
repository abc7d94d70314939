"""A server's batcher, clients and workers in one process: real exchange, rings and slabs, on a test's clock."""

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial

from shoal.batcher.cached_responses import CachedResponses
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.exchange import Exchange
from shoal.batcher.peers import ClientPeer, ScheduledModel
from shoal.messages.from_batcher import WorkerRetired
from shoal.model_config.response_cache import enables_response_cache
from shoal.reasons import Reason
from shoal.repository.lifecycle import ModelVersion
from shoal.shm import layout
from shoal.shm.counters import CACHE_FIGURES, CacheFigures
from shoal.shm.layout import WORD
from shoal.shm.port import Port
from shoal.shm.segment import SegmentView
from shoal.testing.client import LocalClient, OpenRequest
from shoal.testing.event_loop import VirtualEventLoop
from shoal.testing.future import StuckError
from shoal.testing.instances import InlineInstance
from shoal.testing.segments import MAX_IN_FLIGHT, SLAB_NBYTES, create_segment
from shoal.testing.simulation import BATCHER, CLIENT, Simulation, Work

#: How long a thread that waits for coroutines' sockets sleeps between two polls.
_LOOK_S = 0.005


class SimulatedStar(Simulation):
    """The batcher, the client and the instances of a test; see `Simulation` for the clock."""

    def __init__(self, patience_s: float, cache_bytes: int) -> None:
        """`patience_s`: real seconds for which a thread waits without a sign of models' threads, before StuckError."""
        super().__init__()
        self._patience_s = patience_s
        self._instances: dict[int, InlineInstance] = {}  # by owner id
        self._executing: Counter[int] = Counter()  # thread → number of executions that it is in the middle of
        self.exchange = Exchange(0, 1 << 30)
        own, view = create_segment(layout.CLIENT, CLIENT, SLAB_NBYTES)
        link, link_view = create_segment(layout.LINK, CLIENT, 0)
        self._client = self.exchange.clients[CLIENT] = ClientPeer(CLIENT, link, view, self.bell, is_front_end=True)
        self._port = Port(own, link_view, self.bell, MAX_IN_FLIGHT)
        self.segments.add(CLIENT, view)
        self.client = LocalClient(self, self._port)
        if cache_bytes:
            words = memoryview(bytearray(len(CACHE_FIGURES) * WORD)).cast("Q")
            self.exchange.enable_cache(CacheFigures(words, cache_bytes), self.time_ns)
        memory, view = create_segment(layout.BATCHER, BATCHER, SLAB_NBYTES, 0)
        self.exchange.ensembles.connect(memory)
        self._open_segment(BATCHER, view)

    # -- models and requests --------------------------------------------------------------------------------------

    def sharing(self, version: ModelVersion, revision: str = "") -> CachedResponses | None:
        """The response cache; None if the server has none or the model does not enable it. `revision` names
        the files and models, beside the version, that answers depend on."""
        if self.exchange.cached is None or not enables_response_cache(version.config):
            return None
        self.exchange.cached.name(version.model_id, revision, self.now_ns)
        return self.exchange.cached

    def add_model(self, model: ScheduledModel, instances: Sequence[InlineInstance]) -> None:
        """Accept requests to a model, and give batches to its instances."""
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

    def remove_model(self, model: ScheduledModel) -> None:
        """Fail the requests that are queued for a model, or left to its coroutines and threads. An executing instance
        answers first; then, or at once, the model is unloaded."""
        with self.changed:
            for instance in [each for each in self._instances.values() if each.worker.model is model]:
                if instance.is_busy:
                    self.exchange.retire_worker(instance.worker.owner)
                else:
                    self._remove(instance)
            self.exchange.remove_model(model.id, self.now_ns)
            self.admit()
        self._do_left()

    def _remove(self, instance: InlineInstance) -> None:
        """Fail the requests that an instance has not answered; the next thread that waits unloads the model."""
        self.exchange.remove_worker(instance.worker.owner, self.now_ns, Reason.NOT_READY)
        self.admit()  # replies in the instance's segment are read before it goes
        del self._instances[instance.worker.owner]
        self._port.remove_segment(instance.worker.owner)
        self.segments.remove(instance.worker.owner)
        self._left.append(instance.unload)

    def close(self) -> None:
        """Unload all instances, including executing ones."""
        with self.changed:
            for instance in list(self._instances.values()):
                self._remove(instance)
        self._do_left()

    def _do_left(self) -> None:
        while self._left:
            self._left.popleft()()

    def admit(self) -> None:
        with self.changed:
            self.exchange.look_at_clients(self.now_ns)
            for peer in (*self.exchange.workers.values(), self._client):
                peer.flush()
            self.client.deliver()
            self.changed.notify_all()

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, duration_ns: int) -> None:
        """Let time pass, and run all work that becomes due."""
        end_ns = self.now_ns + duration_ns
        self.run_until(lambda: False, end_ns)
        self.now_ns = max(self.now_ns, end_ns)

    def step(self) -> None:
        """Move all records, form batches, pass on replies."""
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
        """The number of records that the exchange has sent so far, to all peers."""
        return sum([each.writer.position for each in (self._client, *self.exchange.workers.values())])

    def run_until(self, is_done: Callable[[], bool], end_ns: int | None = None) -> None:
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
        """Wait for other threads. Returns whether coroutines' sockets must be polled next. Raises StuckError if no
        thread can go on, or none has for too long."""
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
        names = [step.signature.name for _, step in steps]
        if names:
            return f"waits for its steps: {', '.join(names)}"
        for worker in self.exchange.workers.values():
            if (running := worker.missing.get(key)) is not None:
                return "was executed, and keeps it open" if running.is_executed else "is executing it"
        return "has it in its queue"

    # -- what is due ------------------------------------------------------------------------------------------------

    def _next(self, *, looks_at_sockets: bool) -> Work | None:
        """The next piece of work that is due now; None if there is none."""
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

    def _execute(self, instance: InlineInstance) -> None:
        try:
            # In a context of its own: a model that is executed while another model waits is no part of the other's
            # calls.
            copy_context().run(instance.execute)
        finally:
            with self.changed:
                instance.is_executing = False
                self._executing -= Counter((threading.get_ident(),))
