"""A model instance without a process: a worker's own loop and memory, run by the thread that waits for responses."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from shoal.batcher.peers import ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.instances import FAST_NS
from shoal.control import Channel
from shoal.errors import InvalidArgumentError
from shoal.model_config.sequences import num_slots
from shoal.model_config.signature import Signature
from shoal.repository.lifecycle import ModelVersion
from shoal.shm import layout
from shoal.shm.layout import DONE, NEWS, READY, B, D
from shoal.shm.ring import Record, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Block
from shoal.testing.future import Batch, StuckError
from shoal.testing.python_backend import InlinePythonBackend
from shoal.testing.segments import SLAB_NBYTES, create_segment
from shoal.testing.simulation import Simulation
from shoal.workers.answers import Answers, WrittenAnswers
from shoal.workers.backends.backend import Backend
from shoal.workers.loop import Loop, as_shoal_error
from shoal.workers.memory import Memory
from shoal.workers.oversize import WorkerOversizeBlocks
from shoal.workers.requests import Request
from shoal.workers.response_sender import OpenBatches
from shoal.workers.sequences import SequenceTensors

_Result = TypeVar("_Result")


class InlineInstance(Loop):
    """One instance of a loaded model: a worker's loop, run step by step."""

    def __init__(
        self,
        simulation: Simulation,
        version: ModelVersion,
        model: ScheduledModel,
        name: str,
        backend: Backend,
        execution_ns: int,
    ) -> None:
        """`execution_ns` is the time of one execution on the star's clock. Raises ShoalError if initial states of
        sequences cannot be read."""
        config = version.config
        own, self.view = create_segment(layout.WORKER, owner := next(simulation.owners), SLAB_NBYTES)
        link, link_view = create_segment(layout.LINK, owner, layout.slot_table_nbytes(num_slots(config)))
        self.memory = InlineMemory(own, link_view, simulation)
        tensors = SequenceTensors(config, str(version.version_dir)) if "sequence_batching" in config else None
        batches = InlineOpenBatches(self.memory, simulation)
        super().__init__(backend, Signature.from_config(config), name, self.memory, tensors, batches)
        self._simulation = simulation
        self._version = version
        self._execution_ns = execution_ns
        self.worker = WorkerPeer(owner, link, self.view, simulation.bell, model)
        #: The loop of the instance's coroutines; None if it has none.
        self.event_loop = backend.virtual_loop if isinstance(backend, InlinePythonBackend) else None
        #: Whether a thread executes this instance now. Changed by the star.
        self.is_executing = False

    @property
    def is_awaited(self) -> bool:
        """Whether executed requests are yet to be answered, by threads or coroutines."""
        return self._open_batches.num_open > self.is_executing

    @property
    def is_busy(self) -> bool:
        """Whether an execution has begun that is not over on the star's clock."""
        return self.is_executing or self.memory.outbox.is_held

    def execute(self) -> None:
        """Execute the batches that have arrived. Their ends are published once they are over on the star's clock."""
        start_ns, outbox = self._simulation.now_ns, self.memory.outbox
        was_held, outbox.is_held = outbox.is_held, outbox.is_held or self._execution_ns > 0
        if not self.step():  # no batch, only freed memory
            outbox.is_held = was_held
            return
        # A model that has called others has itself advanced the clock.
        end_ns = max(self._simulation.now_ns, start_ns + self._execution_ns)

        def end() -> None:
            with self.memory.lock:
                outbox.end(start_ns, end_ns)

        if end_ns > self._simulation.now_ns:
            self._simulation.at(end_ns, end)
        else:
            end()

    def unload(self) -> None:
        """Unload the backend's model."""
        self._backend.unload()

    def _open(self, records: Sequence[Record], answers: Answers) -> list[Request]:
        requests = super()._open(records, answers)
        ids = tuple([each.id for each in requests if each.key])
        rows = sum([record[B.ROWS] for record in records if record[B.KEY]])
        batch = Batch(self._version.name, self._version.version, self._instance, ids, rows, self._simulation.now_ms)
        self._simulation.batches.append(batch)
        return requests

    def _fail(self, answers: WrittenAnswers, error: Exception, requests: Sequence[Request], *, is_lost: bool) -> int:
        failure = as_shoal_error(error, self._version.name, self._instance, requests)
        self._simulation.note_cause(failure, error)
        return super()._fail(answers, failure, requests, is_lost=is_lost)


class InlineOpenBatches(OpenBatches):
    """A worker's batches with open senders. Work that senders leave to a thread is done by the next thread that
    waits."""

    def __init__(self, memory: Memory, simulation: Simulation) -> None:
        super().__init__(memory)
        self._simulation = simulation

    def start(self) -> None:
        """Do nothing: a star needs no thread for finalizers' work."""

    def later(self, work: Callable[[], None]) -> None:
        """Leave work to the next thread that waits."""
        self._simulation.later(work)


class InlineMemory(Memory):
    """A worker's memory whose readers are in the same process: they release what they hold on request."""

    def __init__(self, segment: Segment, link: SegmentView, simulation: Simulation) -> None:
        super().__init__(segment, link, simulation.bell, simulation.bell, NoOversizeBlocks())
        self.simulation = simulation
        self.ring = simulation.wake
        self.segments = simulation.segments
        self._writer = self.outbox = Outbox(segment, link, simulation.time_ns)
        self.push, self.publish = self.outbox.push, self.outbox.publish

    @property
    def has_mail(self) -> bool:
        """Whether records of the batcher are still unread."""
        return bool(self._batches) or self._reader.has_unread()

    def wait_for(
        self, attempt: Callable[[], _Result | None], batch: int = 0, wait_s: float | None = None, urgency: int = NEWS
    ) -> _Result | None:
        """Repeat `attempt` whenever the batcher has sent records, and run other models meanwhile. Returns the first
        result that is not None, or None if no further record can come."""
        del batch, wait_s, urgency
        num_heeded = 0

        def has_more() -> bool:
            return self._reader.counts[0] != num_heeded  # another thread may have read records since

        while True:
            with self.lock:
                self.drain()
                _, num_heeded = self._reader.counts
            if (result := attempt()) is not None:
                return result
            try:
                self.simulation.run_until(has_more)
            except StuckError:
                return None


class NoOversizeBlocks(WorkerOversizeBlocks):
    """A stand-in for oversize segments: the slab is large, and a result that it does not take is refused."""

    def __init__(self) -> None:
        super().__init__(cast("Channel", None))

    def _allocate(self, nbytes: int) -> Block:
        raise InvalidArgumentError(f"a result of {nbytes} bytes needs a server")


class Outbox(RingWriter):
    """The ring to the batcher. Records get the times of the star's clock; those that end an execution wait until the
    execution is over on that clock."""

    __slots__ = ("_ended", "_time_ns", "is_held")

    def __init__(self, own: Segment, peer: SegmentView, time_ns: Callable[[], int]) -> None:
        super().__init__(own, peer)
        self._time_ns = time_ns
        #: Whether an execution is under way: responses that senders give meanwhile wait for its end, too. Changed by
        #: the instance, and by end.
        self.is_held = False
        self._ended: list[Record] = []

    def push(self, record: Record) -> None:
        """Append a record, or keep it back until `end`: one that ends an execution, and responses while `is_held`."""
        if record[0] in (DONE, READY) and (record[D.BATCH] or self.is_held):
            self._ended.append(record)
        else:
            super().push(_at(record, self._time_ns(), self._time_ns()))

    def end(self, start_ns: int, end_ns: int) -> None:
        """Publish the records that end executions, which took from `start_ns` to `end_ns`."""
        for record in self._ended:
            super().push(_at(record, start_ns, end_ns))
        self._ended.clear()
        self.is_held = False
        self.publish()


def _at(record: Record, start_ns: int, end_ns: int) -> Record:
    """A record with the times of its execution. An execution lasts FAST_NS at least: to a faster instance the batcher
    would send a second batch ahead, which could not run while the model waits for its own calls."""
    if len(record) <= D.COMPUTE_START_NS:
        return record
    end_ns = max(end_ns, start_ns + FAST_NS)
    return (*record[: D.COMPUTE_START_NS], start_ns, start_ns, end_ns, end_ns)
