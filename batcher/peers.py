"""The batcher's peers in the star, as values: clients, workers, and the models that workers are instances of.

Peers and models have little behaviour; `exchange.py` changes them. Live in the batcher.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final, TypeVar

from shoal.batcher.child_traces import TraceParent
from shoal.batcher.finished_requests import FinishedRequests
from shoal.batcher.model_parts import CoalescingCache, RequestMirror, RequestRecording
from shoal.batcher.response_order import ResponseOrder
from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.patience import Patience
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import HeldSlot
from shoal.batcher.scheduling.trials import TrialScheduler
from shoal.batcher.slot_table import SlotTable
from shoal.batcher.statistics import BACKEND, Compute, time_points
from shoal.fault import IS_ARMED, reached
from shoal.model_config.gpu_tensors import NO_GPU
from shoal.model_config.signature import Signature
from shoal.sequences import FLAGS, SLOT_SHIFT
from shoal.shm import layout, records
from shoal.shm.counters import Row
from shoal.shm.doorbell import RING_AFTER_NS, Doorbell, GuestBell
from shoal.shm.layout import BATCH_ITEM, BUSY_SINCE_WORD, NUMBER_BITS, OVERLAP_WORD, OWNER_SHIFT, PROGRESS_WORD, B
from shoal.shm.ring import Record, RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import SlabView
from shoal.timing import Cause, Execution

#: Most CANCEL records in a worker's ring at once: half of the room beside blocks and batches (memory_plan.py).
MAX_CANCELS = 32
_NO_ITEM = layout.record()
_NO_KEYS: Final = frozenset[int]()
NO_SIGNATURE = Signature("", 0, {}, {})


class Peer:
    """A process at the other end of a link: the ring from that process, and the ring to it."""

    __slots__ = ("bell", "must_ring", "owner", "reader", "slab", "writer")

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell | GuestBell) -> None:
        self.owner = owner
        self.reader = RingReader(link, segment)
        self.writer = RingWriter(link, segment)
        self.bell = bell
        self.slab = SlabView(segment)
        #: Whether a pushed record must wake the peer; a FREE need not.
        self.must_ring = False

    def flush(self) -> bool:
        """Publish pushed records, and ring the peer's bell once if necessary. False if further records wait to be
        pushed."""
        self.writer.publish()
        if self.must_ring:
            self.must_ring = False
            self.bell.ring()
        return True

    def acknowledge(self) -> None:
        """Free the slots of all records read from the peer: a successor need not read them."""
        self.reader.acknowledge()


PeerT = TypeVar("PeerT", bound=Peer)


def flush_all(written: set[PeerT]) -> None:
    """Publish to all peers in `written`; peers with further records that wait for room stay in `written`."""
    unfinished: list[PeerT] = []
    for peer in written:
        if not peer.flush():
            unfinished.append(peer)  # noqa: PERF401  before Python 3.12 a comprehension is a call
    written.clear()
    if unfinished:
        written.update(unfinished)


class ClientPeer(Peer):
    """A client of the star: a front end, a caller, or a guest, which is a foreign process (guests.py).

    The key of a request is `first_key` plus the client's number of it.
    """

    __slots__ = ("_recalled", "backlog", "first_key", "is_front_end", "is_guest", "last_number", "traced")

    def __init__(
        self,
        owner: int,
        link: Segment,
        segment: SegmentView,
        bell: Doorbell | GuestBell,
        *,
        is_guest: bool = False,
        is_front_end: bool = False,
    ) -> None:
        super().__init__(owner, link, segment, bell)
        self.first_key = owner << NUMBER_BITS
        self.is_guest = is_guest
        #: A front end runs only Shoal's code, so the digests that it sends are believed.
        self.is_front_end = is_front_end
        #: The greatest number of the client's requests so far; numbers ascend.
        self.last_number = 0
        #: Replies for which the ring to the client has no room yet.
        self.backlog: deque[Record] = deque()
        #: Open traced requests by number: their replies carry times.
        self.traced: dict[int, TraceParent] = {}
        self._recalled = 0  # position in the ring behind the last RECALL

    def send(self, reply: Record) -> None:
        """Send a reply, behind all earlier ones. The ring, once widened, has room for one reply per request; further
        replies, and replies for which no memory is left to widen the ring, wait in the backlog."""
        self.must_ring = True
        if self.backlog:
            self.backlog.append(reply)
            return
        try:
            self.writer.push(reply)
        except RingFullError:
            self.backlog.append(reply)

    @property
    def has_unread_recall(self) -> bool:
        """Whether the client has not read the last RECALL."""
        return self.writer.is_unread(self._recalled)

    def recall(self, record: Record) -> None:
        """Send a RECALL to a front end, which copies the worker's results that it holds; skipped if the ring is
        full."""
        with suppress(RingFullError):
            self.writer.push(record)
            self._recalled = self.writer.position
            self.must_ring = True

    def send_child_trace(self, record: Record, max_unread: int) -> bool:
        """Send a CHILD_TRACE unless `max_unread` records are unread, or there is no room. Returns whether it was sent.

        The client reads the record with its next reply; it is woken only once half of the room is taken.
        """
        num_unread = self.writer.num_unread
        if self.backlog or num_unread >= max_unread:
            return False
        try:
            self.writer.push(record)
        except RingFullError:  # there is no memory to widen the ring
            return False
        self.must_ring = self.must_ring or num_unread >= layout.MAX_UNREAD_CHILD_TRACES // 2
        return True

    def trace_parent(self, number: int) -> TraceParent | None:
        """The trace that an open request is part of; None if it is not traced."""
        return self.traced.get(number)

    @property
    def kind(self) -> str:
        """The kind of the client in a FinishedRequest."""
        return "front end" if self.is_front_end else "client" if self.is_guest else "model"

    def block(self, ref: int) -> memoryview | None:
        """A block of the client's own slab; None for any other block."""
        return self.slab.open(ref) if ref >> OWNER_SHIFT == self.owner else None

    def times(
        self, number: int, model: "ScheduledModel", queue_ns: int, compute: Compute
    ) -> tuple[int, int, int, int, int]:
        """The five words of a reply with the times of its request's acceptance and computation; zeros if the request
        is not traced."""
        if number not in self.traced:
            return 0, 0, 0, 0, 0
        return queue_ns, *model.points(compute)

    def flush(self) -> bool:
        """Move as much of the backlog into the ring as fits, and publish. False if replies are left in the backlog."""
        if self.backlog:
            self.writer.widen()
            for _ in range(min(self.writer.num_free, len(self.backlog))):
                self.writer.push(self.backlog.popleft())
                self.must_ring = True
        Peer.flush(self)
        return not self.backlog


Reply = tuple[ClientPeer, Record]


class ScheduledModel:
    """A loaded model version: its scheduler and its row of statistics."""

    __slots__ = (
        "finished", "gpu", "groups", "id", "is_failed", "is_fixed", "latest_ns", "max_rows", "may_run_again", "mirror",
        "order", "patience", "recording", "row", "scheduler", "sequences", "sharing", "signature", "split_id",
        "trials", "version",
    )  # fmt: skip
    #: The cell that counts the model's requests which end with an error and were not cancelled.
    FAILURE: ClassVar[int] = BACKEND

    def __init__(
        self, model_id: int, scheduler: Scheduler, row: Row, *, max_rows: int = 1, is_fixed: bool = False,
        may_run_again: bool = False, keeps_order: bool = False, signature: Signature = NO_SIGNATURE, version: int = 0,
        groups: Sequence[str] = (), sharing: CoalescingCache | None = None, has_priorities: bool = False,
        gpu: int = NO_GPU,
    ) -> None:  # fmt: skip
        self.id = model_id
        #: The most rows of one request, and whether requests differ only in their number of rows (guests.py).
        self.max_rows = max_rows
        self.is_fixed = is_fixed
        #: Used by ensembles that have the model as a step: its inputs and outputs; name and version are for errors.
        self.signature = signature
        self.version = version
        self.groups = groups
        #: The GPU on which all instances read inputs in place.
        self.gpu = gpu
        self.scheduler = scheduler
        if scheduler.rejects:
            self.heed_deadlines()
        #: The trials in front of the scheduler while there are suspects, since an instance died of a request.
        self.trials: TrialScheduler | None = None
        #: How long clients wait before they give up; requests that would take longer are refused.
        self.patience = Patience()
        #: The model's sequence batcher; None if its requests belong to no sequences.
        self.sequences = scheduler.sequences
        self.row = row
        #: Whether a request whose execution ended with its instance's death may be executed a second time.
        self.may_run_again = may_run_again
        #: With `preserve_ordering`: which replies may be sent.
        self.order: ResponseOrder[Reply] | None = ResponseOrder() if keeps_order else None
        #: With `response_cache`: finds equal requests.
        self.sharing = sharing
        #: Whether all instances die again and again: requests are refused until one is ready.
        self.is_failed = False
        #: The slowest and the failed requests of the last minutes.
        self.finished = FinishedRequests()
        #: How the model's requests are recorded; None: they are not recorded.
        self.recording: RequestRecording | None = None
        #: How the model's answered requests are mirrored to a shadow; None: they are not mirrored.
        self.mirror: RequestMirror | None = None
        #: The id of the split in which this version is stable or canary (splits.py); 0: in none.
        self.split_id = 0
        #: Priority → arrival (ns) of the latest request that was given to an instance; None with a single priority.
        self.latest_ns: dict[int, int] | None = {} if has_priorities else None

    def note_ends(self) -> None:
        """Have the ends of all requests noted while the model is recorded, mirrored or in a split; otherwise only the
        ends of slow and failed ones."""
        self.finished.note_all(is_on=self.recording is not None or self.mirror is not None or self.split_id != 0)

    def end_trials(self) -> None:
        """Remove the trials in front of the scheduler if there is no suspect left."""
        if self.trials is not None and self.trials.is_idle and self.scheduler is self.trials:
            self.scheduler, self.trials = self.trials.behind, None

    def points(self, compute: Compute) -> tuple[int, int, int, int]:
        """The compute time points in the trace of one of the model's requests."""
        return time_points(compute)

    def heed_deadlines(self) -> None:
        """Check deadlines from now on: a request with a deadline is about to be queued."""
        if not self.scheduler.heeds_deadlines:
            self.scheduler = DeadlineScheduler(self.scheduler)


#: Client, model, the client's number, block, header, when the client began to receive the request and when it was
#: accepted (monotonic ns), and the request as schedulers see it. A plain tuple, unpacked at once: an object costs ten
#: times as much to make, an attribute more to read.
OpenRequest = tuple[ClientPeer, ScheduledModel, int, int, int, int, int, QueuedRequest]


class RunningBatch:
    """A batch that a worker has been given: its number, its rows, and how many of its answers are missing.

    The batch was formed at `formed_ns`, for a `worker` that had been free since `free_ns`, and may have waited there
    for the batch `ahead`, which is known until this batch is finished. Requests whose keys are in `overtaken` have been
    overtaken by later ones of a higher priority. `is_executed` is set once the execution is over and the instance is
    free, though answers are missing. `compute` are the times of the execution that ended at `end_ns`. `positions`, for
    a batch whose answers come one by one: key → position in the ring of each request that is not marked as answered.
    """

    __slots__ = (
        "ahead", "compute", "count", "end_ns", "formed_ns", "free_ns", "is_executed", "num_missing", "number",
        "overtaken", "positions", "rows", "worker",
    )  # fmt: skip

    def __init__(
        self, number: int, rows: int, num_missing: int, worker: "WorkerPeer | None" = None, formed_ns: int = 0
    ) -> None:
        self.number = number
        self.rows = rows
        self.num_missing = self.count = num_missing
        self.formed_ns = formed_ns
        self.worker = worker
        self.free_ns, self.ahead = (0, None) if worker is None else (worker.free_ns, worker.last)
        self.overtaken: frozenset[int] = _NO_KEYS
        self.is_executed = False
        self.end_ns = -1
        self.compute: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.positions: dict[int, int] | None = None

    def execution(self, key: int) -> Execution | None:
        """The execution that one of the batch's requests was part of; None if the batch was a dead batcher's."""
        worker, ahead = self.worker, self.ahead
        if worker is None:
            return None
        cause = Cause.SEQUENCE if worker.model.sequences is not None else Cause.FORMING
        if worker.is_limited:
            cause = Cause.LIMIT
        before = (0, 0, 0, 0) if ahead is None else (ahead.rows, ahead.count, ahead.compute[0], max(0, ahead.end_ns))
        is_overtaken = int(key in self.overtaken)
        return Execution(
            worker.instance, cause, self.formed_ns, self.free_ns, self.rows, self.count, *before, is_overtaken
        )


class WorkerPeer(Peer):
    """A model instance, and the requests that it has been given and not answered, in the order of their batches."""

    __slots__ = (
        "_link_words", "_words", "cancelled", "free_ns", "freed", "held", "instance", "is_limited", "lacks_memory",
        "last", "missing", "model", "num_batches", "num_finished", "partly_answered", "short_since_ns", "slots",
    )  # fmt: skip

    def __init__(
        self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell, model: ScheduledModel,
        *, instance: int = 0, is_limited: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(owner, link, segment, bell)
        self.model = model
        self.instance = instance  # pid, group and number, as in DeathDetail (shoal/reasons.py)
        self.is_limited = is_limited  # its batches wait for the rate limiter
        #: The last batch that the worker was given, and when its last execution ended or, before the first, the worker
        #: came up (monotonic ns).
        self.last: RunningBatch | None = None
        self.free_ns = 0
        self.missing: dict[int, RunningBatch] = {}
        #: Numbers of the last batch that the worker was given and of the last finished one; batches finish in order.
        self.num_batches = self.num_finished = 0
        #: Blocks of the worker that have no holder any more, to be sent with its next batch, or at the end of the step.
        self.freed: list[int] = []
        #: Cancelled requests whose CANCEL has not been sent to the worker, each once.
        self.cancelled: set[int] = set()
        #: Whether the worker waits for freed blocks, and since when it lacks memory for a result (ns; 0: it does not).
        self.lacks_memory = False
        self.short_since_ns = 0
        #: A batch of which one request or more were answered in this step.
        self.partly_answered: RunningBatch | None = None
        #: The instance's sequences by slot; `held` are those that a successor found there.
        self.slots = SlotTable(link)
        self.held: list[HeldSlot] = []
        self._words = segment.words
        self._link_words = link.words

    def forget_batches(self) -> None:
        """Remove all references from batches to this worker, which has ended. Otherwise its segment would stay mapped
        until Python's garbage collector finds the cycle."""
        for running in (self.last, *self.missing.values()):
            if running is not None:
                running.worker = running.ahead = None

    @property
    def batch_begun(self) -> int:
        """Number of the last batch that the worker has begun, according to the worker itself."""
        return self._words[PROGRESS_WORD]

    @property
    def batch_executing(self) -> int:
        """Number of the batch that the worker executes, according to the worker itself; 0 between two."""
        return self._words[PROGRESS_WORD] if self._words[BUSY_SINCE_WORD] else 0

    def may_answer_silently(self, now_ns: int) -> bool:
        """Whether the worker's ring has an answer, or may get one, for which the bell is not rung before the next
        execution, which may be long. False once the present execution has lasted so long that the worker rings at
        its end."""
        since_ns = self._words[BUSY_SINCE_WORD]
        if not self.missing or self.overlaps or 0 < since_ns < now_ns - RING_AFTER_NS:
            return self.reader.has_unread()  # read after BUSY_SINCE, so that no earlier answer is missed
        return True

    def flush(self) -> bool:
        """Publish pushed records, after pushing FREEs of blocks that no batch has carried, and as many CANCELs as the
        ring has room for beside blocks and batches. False if CANCELs are left."""
        if self.freed:
            for ref in self.freed:
                self.writer.push(records.free_record(ref))
            self.freed.clear()
        while self.cancelled and self.writer.num_unread < MAX_CANCELS:
            self.writer.push(records.cancel_item_record(self.cancelled.pop()))
            self.must_ring = True
        Peer.flush(self)
        return not self.cancelled

    @property
    def overlaps(self) -> bool:
        """Whether the worker answers requests after their execution has ended, so that batches do not finish in
        order."""
        return bool(self._link_words[OVERLAP_WORD])

    def end_shortage(self, ref: int) -> None:
        """Note a result in block `ref` (0: without a block): the worker does not wait for memory any more."""
        self.short_since_ns = 0
        # a result in the worker's own slab shows that the slab has room again
        self.lacks_memory = layout.ref_owner(ref) != self.owner

    def note_overlap(self) -> None:
        """Mark the worker as overlapping, for a successor, too."""
        self._link_words[OVERLAP_WORD] = 1

    def acknowledge(self) -> None:
        """Free the slots of the worker's records. For a successor, the link then has the number of the batch up to
        which all answers were passed on, and marks on the answered requests of the batch behind that one."""
        if (running := self.partly_answered) is not None:
            self.partly_answered = None
            if running.num_missing and not self.overlaps:
                order = self.model.order
                for key in [key for key in self._positions(running) if self.missing.get(key) is not running]:
                    if order is not None and order.num_kept(key):
                        self.note_overlap()  # a successor cannot know which answers were kept back
                        break
                    self._mark(running, key)
        self._link_words[PROGRESS_WORD] = self.num_finished
        self.reader.acknowledge()

    def note_returned(self, running: RunningBatch, key: int) -> None:
        """Mark, for a successor, that the worker has returned a request of this batch: the successor need not wait for
        an answer here, and may find the request again in a later batch. To be called before it is queued again."""
        if not self.overlaps:
            self._mark(running, key)

    def _mark(self, running: RunningBatch, key: int) -> None:
        position = self._positions(running).pop(key, None)
        if position is not None:
            self.writer.mark(position, B.ANSWERED, 1)

    def _positions(self, running: RunningBatch) -> dict[int, int]:
        if running.positions is None:
            running.positions = {
                record[B.KEY]: position
                for position, record in self.items(running.number - 1)
                if record[B.BATCH] == running.number
            }
        return running.positions

    def items(self, finished: int) -> Iterator[tuple[int, Record]]:
        """The requests of all batches behind the batch `finished`, newest first, with their positions in the ring."""
        for position, record in self.writer.history():
            if record[0] == BATCH_ITEM:
                if record[B.BATCH] <= finished:
                    return
                yield position, record

    def given(self) -> list[Record]:
        """The requests that a dead batcher gave this worker and saw no answer to, as far as known, oldest first."""
        if not self.missing:
            return []
        items = [record for _, record in self.items(self._link_words[PROGRESS_WORD]) if not record[B.ANSWERED]]
        return [record for record in reversed(items) if record[B.KEY] in self.missing]

    def take_over(self) -> None:
        """Find, in the ring to this worker, the requests that a dead batcher gave the worker and saw no answer to.

        If the worker's executions overlap, such requests cannot be told from those whose responses clients have had
        already: then the records of earlier batches are ignored.
        """
        finished = self._link_words[PROGRESS_WORD]
        self.num_finished = self.num_batches = finished
        items = list(self.items(finished))
        if items:
            self.num_finished = self.num_batches = items[0][1][B.BATCH]
        slots = list(self.slots.read())
        if self.overlaps:
            self.held = [HeldSlot(*each) for each in slots]
            if IS_ARMED:
                reached("introduced")
            return
        batches: dict[int, RunningBatch] = {}
        given: dict[int, Record] = {}  # by the slot of the request's sequence
        for _, record in reversed(items):
            number = record[B.BATCH]
            running = batches.setdefault(number, RunningBatch(number, 0, 0))
            running.rows += record[B.ROWS]
            if not record[B.ANSWERED]:
                running.num_missing += 1
                self.missing[record[B.KEY]] = running
                given[(record[B.FLAGS] >> SLOT_SHIFT) - 1] = record
        if self.missing:
            # Batches finish in order, so all batches before the first one with missing answers have finished.
            self.num_finished = next(iter(self.missing.values())).number - 1
        for slot, correlation, number, state in slots:
            record = given.get(slot, _NO_ITEM)
            if record[B.CORRELATION] != correlation:
                record = _NO_ITEM
            self.held.append(HeldSlot(slot, correlation, number, state, record[B.KEY], record[B.FLAGS] & FLAGS))
        if IS_ARMED:
            reached("introduced")
