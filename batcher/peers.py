"""The batcher's neighbours in the star: clients that ask, workers that answer, models that workers are instances of.

Values with little behaviour; `exchange.py` changes them. Live in the batcher.
"""

from collections import deque

from shoal.batcher.scheduling.scheduler import Scheduler
from shoal.shm import layout
from shoal.shm.counters import Row
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import BATCH_ITEM, CANCEL, FREE, NUMBER_BITS, OVERLAP_WORD, PROGRESS_WORD, B
from shoal.shm.ring import Record, RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView

#: CANCEL records in a worker's ring at once: half of what it has room for beside blocks and batches (memory_plan.py).
MAX_CANCELS = 32


class Peer:
    """One link: the ring from a process and the ring to it."""

    __slots__ = ("bell", "must_ring", "owner", "reader", "writer")

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell) -> None:
        self.owner = owner
        self.reader = RingReader(link, segment)
        self.writer = RingWriter(link, segment)
        self.bell = bell
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
    """A front end, or a worker whose model calls others.

    Its number of a request, added to `first_key`, is the request's key.
    """

    __slots__ = ("backlog", "first_key", "traced")

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell) -> None:
        super().__init__(owner, link, segment, bell)
        self.first_key = owner << NUMBER_BITS
        #: Replies that its ring has no room for yet.
        self.backlog: deque[Record] = deque()
        #: Numbers of open requests whose replies shall have the times in them.
        self.traced: set[int] = set()

    def say(self, reply: Record) -> None:
        """Tell the client, after all it was told before. Its ring has room for one reply to each request."""
        self.must_ring = True
        if self.backlog:
            self.backlog.append(reply)
            return
        try:
            self.writer.push(reply)
        except RingFullError:
            self.backlog.append(reply)

    def flush(self) -> bool:
        """Of the backlog, show it what there is room for, too."""
        if self.backlog:
            for _ in range(min(self.writer.num_free, len(self.backlog))):
                self.writer.push(self.backlog.popleft())
                self.must_ring = True
        super().flush()
        return not self.backlog


class Model:
    """A loaded model version: its scheduler and its row of statistics."""

    __slots__ = ("id", "is_failed", "may_run_again", "row", "scheduler")

    def __init__(self, model_id: int, scheduler: Scheduler, row: Row, *, may_run_again: bool = False) -> None:
        self.id = model_id
        self.scheduler = scheduler
        self.row = row
        #: Whether a request whose execution ended with its instance's death may be executed a second time.
        self.may_run_again = may_run_again
        #: Whether all its instances die again and again: nothing is queued for it until one is ready.
        self.is_failed = False


class Running:
    """A batch that a worker has been given: its number, how many rows, how many of its answers are missing.

    `is_executed` once only its answers are awaited, and the instance has been given others.
    """

    __slots__ = ("is_executed", "num_missing", "number", "rows")

    def __init__(self, number: int, rows: int, num_missing: int) -> None:
        self.number = number
        self.rows = rows
        self.num_missing = num_missing
        self.is_executed = False


class Worker(Peer):
    """A model instance: the requests it has been given and has not answered, in the order of their batches."""

    __slots__ = (
        "_link_words", "_words", "cancelled", "freed", "is_hungry", "missing", "model", "num_batches", "num_finished"
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
        self.is_hungry = False  # it waits for memory
        self._words = segment.words
        self._link_words = link.words

    @property
    def batch_begun(self) -> int:
        """The number of the batch that it began last, as it says itself."""
        return self._words[PROGRESS_WORD]

    def flush(self) -> bool:
        """Tell what was freed and did not travel with a batch, too, and of what was cancelled as much as leaves room
        for blocks and batches."""
        for ref in self.freed:
            self.writer.push((FREE, 0, 0, ref, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        self.freed.clear()
        while self.cancelled and self.writer.num_unread < MAX_CANCELS:
            self.writer.push(layout.record(CANCEL, self.cancelled.pop()))
            self.must_ring = True
        super().flush()
        return not self.cancelled

    @property
    def overlaps(self) -> bool:
        """Whether it answers requests after it has executed them, so that batches do not end in their order."""
        return bool(self._link_words[OVERLAP_WORD])

    def note_overlap(self) -> None:
        """It does; a successor will know, too."""
        self._link_words[OVERLAP_WORD] = 1

    def acknowledge(self) -> None:
        """Leave a successor the number of the batch up to which all answers were passed on, too."""
        self._link_words[PROGRESS_WORD] = self.num_finished
        super().acknowledge()

    def take_over(self) -> None:
        """Find out what a dead batcher gave this worker and saw no answer to: it stands in the ring between them.

        Of one whose executions overlap nobody can tell what it has and what clients have been shown of it: whatever it
        says of earlier batches is passed over.
        """
        self.num_finished = self.num_batches = self._link_words[PROGRESS_WORD]
        if self.overlaps:
            given = (record[B.BATCH] for record in self.writer.history() if record[0] == BATCH_ITEM)
            self.num_finished = self.num_batches = next(given, self.num_finished)
            return
        items = []
        for record in self.writer.history():
            if record[0] != BATCH_ITEM:
                continue
            if record[B.BATCH] <= self.num_finished:
                break
            items.append(record)
        batches: dict[int, Running] = {}
        for record in reversed(items):
            self.num_batches = number = record[B.BATCH]
            running = batches.setdefault(number, Running(number, 0, record[B.COUNT]))
            running.rows += record[B.ROWS]
            self.missing[record[B.KEY]] = running
