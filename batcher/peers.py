"""The batcher's neighbours in the star: clients that ask, workers that answer, models that workers are instances of.

Values with little behaviour; `exchange.py` changes them. Live in the batcher.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from shoal.batcher.child_traces import TraceParent
from shoal.batcher.response_order import ResponseOrder
from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import HeldSlot
from shoal.batcher.slot_table import SlotTable
from shoal.batcher.statistics import BACKEND, Compute, time_points
from shoal.model_config.signature import Signature
from shoal.sequences import FLAGS, SLOT_SHIFT
from shoal.shm import layout
from shoal.shm.counters import Row
from shoal.shm.doorbell import RING_AFTER_NS, Doorbell, GuestBell
from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_SINCE_WORD,
    MAX_UNREAD_CHILD_TRACES,
    NUMBER_BITS,
    OVERLAP_WORD,
    PROGRESS_WORD,
    B,
)
from shoal.shm.ring import Record, RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import SlabView

#: CANCEL records in a worker's ring at once: half of what it has room for beside blocks and batches (memory_plan.py).
MAX_CANCELS = 32
_NO_ITEM = layout.record()


class Peer:
    """One link: the ring from a process and the ring to it."""

    __slots__ = ("bell", "must_ring", "owner", "reader", "slab", "writer")

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell | GuestBell) -> None:
        self.owner = owner
        self.reader = RingReader(link, segment)
        self.writer = RingWriter(link, segment)
        self.bell = bell
        self.slab = SlabView(segment)
        #: Whether something was pushed that the peer must be woken for; a FREE can wait.
        self.must_ring = False

    def flush(self) -> bool:
        """Show the peer what was pushed; its bell rings once, and only if it must. False where it shall hear more."""
        self.writer.publish()
        if self.must_ring:
            self.must_ring = False
            self.bell.ring()
        return True

    def acknowledge(self) -> None:
        """What was read of the peer has had its effect: a successor need not read it again."""
        self.reader.acknowledge()


class Client(Peer):
    """A front end, a worker whose model calls others, or a guest: a process that is not ours (guests.py).

    Its number of a request, added to `first_key`, is the request's key.
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
        #: Nobody else's code runs there, so what it says of tensors is believed.
        self.is_front_end = is_front_end
        #: Of its requests: each has a greater one than those before it.
        self.last_number = 0
        #: Replies that its ring has no room for yet.
        self.backlog: deque[Record] = deque()
        #: Numbers of open requests that are traced: their replies shall have the times in them.
        self.traced: dict[int, TraceParent] = {}
        self._recalled = 0  # where in the ring the last RECALL ends

    def say(self, reply: Record) -> None:
        """Tell the client, after all it was told before. Its ring has room for one reply to each request, whatever else
        is in it."""
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
        """Whether it has not read the last RECALL."""
        return self.writer.is_unread(self._recalled)

    def recall(self, record: Record) -> None:
        """Ask a front end for what it holds of a worker's results; not where its ring is full: it is asked again."""
        with suppress(RingFullError):
            self.writer.push(record)
            self._recalled = self.writer.position
            self.must_ring = True

    def send_child_trace(self, record: Record, max_unread: int) -> bool:
        """Send a CHILD_TRACE, and return True; not where more records are unread, or replies wait for room.

        It is read with the next reply. Only where half of its room is taken, its client is woken for it.
        """
        num_unread = self.writer.num_unread
        if self.backlog or num_unread >= max_unread:
            return False
        self.writer.push(record)
        self.must_ring = self.must_ring or num_unread >= MAX_UNREAD_CHILD_TRACES // 2
        return True

    def trace_parent(self, number: int) -> TraceParent | None:
        """Which trace an open request is part of; None where it is not traced."""
        return self.traced.get(number)

    def times(self, number: int, model: "Model", queue_ns: int, compute: Compute) -> tuple[int, int, int, int, int]:
        """The words of a reply that say when its request was accepted and computed; zeros where it is not traced."""
        if number not in self.traced:
            return 0, 0, 0, 0, 0
        return queue_ns, *model.points(compute)

    def flush(self) -> bool:
        """Of the backlog, show it what there is room for, too."""
        if self.backlog:
            for _ in range(min(self.writer.num_free, len(self.backlog))):
                self.writer.push(self.backlog.popleft())
                self.must_ring = True
        Peer.flush(self)
        return not self.backlog


Reply = tuple[Client, Record]


class Sharing(Protocol):
    """Who answers several requests with one response (cached_responses.py)."""

    def take(self, model: "Model", queued: QueuedRequest, digest: tuple[int, int]) -> bool: ...
    def settle(self, model: "Model", key: int, answer: tuple[int, int, int] | None, now_ns: int) -> None: ...
    def cancel(self, key: int) -> bool: ...
    def abandon(self, model: "Model", key: int) -> None: ...
    def drain(self, model_id: int) -> list[int]: ...


class Model:
    """A loaded model version: its scheduler and its row of statistics."""

    __slots__ = (
        "groups", "id", "is_failed", "is_fixed", "max_rows", "may_run_again", "order", "row", "scheduler", "sequences",
        "sharing", "signature", "version",
    )  # fmt: skip
    #: What its requests that are answered with errors count as, unless they were cancelled.
    FAILURE = BACKEND

    def __init__(
        self,
        model_id: int,
        scheduler: Scheduler,
        row: Row,
        *,
        max_rows: int = 1,
        is_fixed: bool = False,
        may_run_again: bool = False,
        keeps_order: bool = False,
        signature: Signature | None = None,
        version: int = 0,
        groups: Sequence[str] = (),
        sharing: Sharing | None = None,
    ) -> None:
        self.id = model_id
        #: Of one request, and whether requests differ in nothing else (guests.py).
        self.max_rows = max_rows
        self.is_fixed = is_fixed
        #: What ensembles must know of it: what it takes, and how its refusals name it and its instances.
        self.signature = signature
        self.version = version
        self.groups = groups
        self.scheduler = scheduler
        if scheduler.rejects:
            self.heed_deadlines()
        #: Where requests belong to sequences, what decides of those.
        self.sequences = scheduler.sequences
        self.row = row
        #: Whether a request whose execution ended with its instance's death may be executed a second time.
        self.may_run_again = may_run_again
        #: With `preserve_ordering`: which of its replies may go.
        self.order: ResponseOrder[Reply] | None = ResponseOrder() if keeps_order else None
        #: With `response_cache`: who knows of equal requests.
        self.sharing = sharing
        #: Whether all its instances die again and again: nothing is queued for it until one is ready.
        self.is_failed = False

    def points(self, compute: Compute) -> tuple[int, int, int, int]:
        """The compute time points that a trace of one of its requests has."""
        return time_points(compute)

    def heed_deadlines(self) -> None:
        """A request with a deadline is about to be queued: from now on they are looked at."""
        if not self.scheduler.heeds_deadlines:
            self.scheduler = DeadlineScheduler(self.scheduler)


class Running:
    """A batch that a worker has been given: its number, how many rows, how many of its answers are missing.

    `is_executed` once only its answers are awaited, and the instance has been given others. `compute` is how the
    execution spent its time that ended at `end_ns`. `positions`, of a batch whose answers come one by one: where in the
    ring those of its requests stand that are not marked as answered, by key.
    """

    __slots__ = ("compute", "end_ns", "is_executed", "num_missing", "number", "positions", "rows")

    def __init__(self, number: int, rows: int, num_missing: int) -> None:
        self.number = number
        self.rows = rows
        self.num_missing = num_missing
        self.is_executed = False
        self.end_ns = -1
        self.compute: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.positions: dict[int, int] | None = None


class Worker(Peer):
    """A model instance: the requests it has been given and has not answered, in the order of their batches."""

    __slots__ = (
        "_link_words", "_words", "cancelled", "freed", "held", "is_hungry", "missing", "model", "num_batches",
        "num_finished", "partly_answered", "short_since_ns", "slots",
    )  # fmt: skip

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell, model: Model) -> None:
        super().__init__(owner, link, segment, bell)
        self.model = model
        self.missing: dict[int, Running] = {}
        #: Numbers of the batch that it was given last, and of the one that it finished last: it keeps their order.
        self.num_batches = 0
        self.num_finished = 0
        #: Blocks of its that nobody holds any more, to be told with its next batch, or at the end of the step.
        self.freed: list[int] = []
        #: Requests that nobody waits for any more, which it has not been told: each once, whoever says it again.
        self.cancelled: set[int] = set()
        #: Whether it waits for blocks to come back, and since when because it has no memory for a result (0: it has).
        self.is_hungry = False
        self.short_since_ns = 0
        #: A batch some of whose requests were answered in this step, perhaps all.
        self.partly_answered: Running | None = None
        #: Which sequences the instance has; as a successor finds them, `held`.
        self.slots = SlotTable(link)
        self.held: list[HeldSlot] = []
        self._words = segment.words
        self._link_words = link.words

    @property
    def batch_begun(self) -> int:
        """The number of the batch that it began last, as it says itself."""
        return self._words[PROGRESS_WORD]

    def may_not_ring(self, now_ns: int) -> bool:
        """Whether the ring may get, or has, an answer for which the worker does not ring before its next execution,
        which may be long. Not once the present execution has lasted so long that the worker rings at its end."""
        since_ns = self._words[BUSY_SINCE_WORD]
        if not self.missing or self.overlaps or 0 < since_ns < now_ns - RING_AFTER_NS:
            return self.reader.has_unread()  # in this order: answers from before this execution are seen
        return True

    def flush(self) -> bool:
        """Tell what was freed and did not travel with a batch, too, and of what was cancelled as much as leaves room
        for blocks and batches."""
        for ref in self.freed:
            self.writer.push(layout.free_record(ref))
        self.freed.clear()
        while self.cancelled and self.writer.num_unread < MAX_CANCELS:
            self.writer.push(layout.cancel_item_record(self.cancelled.pop()))
            self.must_ring = True
        Peer.flush(self)
        return not self.cancelled

    @property
    def overlaps(self) -> bool:
        """Whether it answers requests after it has executed them, so that batches do not end in their order."""
        return bool(self._link_words[OVERLAP_WORD])

    def end_shortage(self, ref: int) -> None:
        """The worker has sent a result, in this block if any, and so waits for memory no longer."""
        self.short_since_ns = 0
        self.is_hungry = layout.ref_owner(ref) != self.owner  # a block of its own slab says that this has room again

    def note_overlap(self) -> None:
        """It does; a successor will know, too."""
        self._link_words[OVERLAP_WORD] = 1

    def acknowledge(self) -> None:
        """Note all records of the worker as passed on. A successor is left the number of the batch up to which all
        answers were, and, of the batch behind it, which were."""
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

    def note_returned(self, running: Running, key: int) -> None:
        """Leave a successor that the worker has given a request of this batch back: it need not wait for an answer, and
        may find the request in a later batch. Before the request is given to an instance again."""
        if not self.overlaps:
            self._mark(running, key)

    def _mark(self, running: Running, key: int) -> None:
        position = self._positions(running).pop(key, None)
        if position is not None:
            self.writer.mark(position, B.ANSWERED, 1)

    def _positions(self, running: Running) -> dict[int, int]:
        if running.positions is None:
            running.positions = {
                record[B.KEY]: position
                for position, record in self._items(running.number - 1)
                if record[B.BATCH] == running.number
            }
        return running.positions

    def _items(self, finished: int) -> Iterator[tuple[int, Record]]:
        """The requests of all batches behind the batch `finished`, the newest first, with their places in the ring."""
        for position, record in self.writer.history():
            if record[0] == BATCH_ITEM:
                if record[B.BATCH] <= finished:
                    return
                yield position, record

    def given(self) -> list[Record]:
        """The requests that a dead batcher gave this worker and saw no answer to, in order, where this is known."""
        if not self.missing:
            return []
        items = [record for _, record in self._items(self._link_words[PROGRESS_WORD]) if not record[B.ANSWERED]]
        return [record for record in reversed(items) if record[B.KEY] in self.missing]

    def take_over(self) -> None:
        """Find out what a dead batcher gave this worker and saw no answer to: it stands in the ring between them.

        Requests of a worker whose executions overlap cannot be told from those whose responses clients have been
        shown: whatever it says of earlier batches is passed over.
        """
        finished = self._link_words[PROGRESS_WORD]
        self.num_finished = self.num_batches = finished
        items = list(self._items(finished))
        if items:
            self.num_finished = self.num_batches = items[0][1][B.BATCH]
        slots = list(self.slots.read())
        if self.overlaps:
            self.held = [HeldSlot(*each) for each in slots]
            return
        batches: dict[int, Running] = {}
        given: dict[int, Record] = {}  # by slot
        for _, record in reversed(items):
            number = record[B.BATCH]
            running = batches.setdefault(number, Running(number, 0, 0))
            running.rows += record[B.ROWS]
            if not record[B.ANSWERED]:
                running.num_missing += 1
                self.missing[record[B.KEY]] = running
                given[(record[B.FLAGS] >> SLOT_SHIFT) - 1] = record
        if self.missing:
            # Batches end in their order, so the first that misses answers is the first that has not ended.
            self.num_finished = next(iter(self.missing.values())).number - 1
        for slot, correlation, number, state in slots:
            record = given.get(slot, _NO_ITEM)
            if record[B.CORRELATION] != correlation:
                record = _NO_ITEM
            self.held.append(HeldSlot(slot, correlation, number, state, record[B.KEY], record[B.FLAGS] & FLAGS))
