"""The batcher's neighbours in the star: clients that ask, workers that answer, models that workers are instances of.

Values with little behaviour; `exchange.py` changes them. Live in the batcher.
"""

from shoal.batcher.scheduling.scheduler import Scheduler
from shoal.shm.counters import Row
from shoal.shm.doorbell import Doorbell
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView


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

    def flush(self) -> None:
        """Show the peer what was pushed; its bell rings once, and only if it must."""
        self.writer.publish()
        if self.must_ring:
            self.must_ring = False
            self.bell.ring()


class Client(Peer):
    """A front end. `keys` finds the batcher's key of a request by the client's own number."""

    __slots__ = ("keys",)

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell) -> None:
        super().__init__(owner, link, segment, bell)
        self.keys: dict[int, int] = {}


class Model:
    """A loaded model version: its scheduler and its row of statistics."""

    __slots__ = ("id", "row", "scheduler")

    def __init__(self, model_id: int, scheduler: Scheduler, row: Row) -> None:
        self.id = model_id
        self.scheduler = scheduler
        self.row = row


class Running:
    """A batch that a worker has been given: how many rows, how many of its answers are missing."""

    __slots__ = ("num_missing", "rows")

    def __init__(self, rows: int, num_missing: int) -> None:
        self.rows = rows
        self.num_missing = num_missing


class Worker(Peer):
    """A model instance: the batches it has been given, in order, and the requests it has not answered."""

    __slots__ = ("batches", "is_hungry", "missing", "model", "num_batches")

    def __init__(self, owner: int, link: Segment, segment: SegmentView, bell: Doorbell, model: Model) -> None:
        super().__init__(owner, link, segment, bell)
        self.model = model
        self.batches: dict[int, Running] = {}
        self.missing: dict[int, int] = {}  # key → number of its batch
        self.num_batches = 0
        self.is_hungry = False  # it waits for memory


class Request:
    """An accepted request that has not been answered. Times are monotonic nanoseconds."""

    __slots__ = ("block", "client", "header", "model", "number", "queue_ns", "rows", "start_ns")

    def __init__(
        self,
        client: Client,
        number: int,
        model: Model,
        block: int,
        header: int,
        rows: int,
        start_ns: int,
        queue_ns: int,
    ) -> None:
        self.client = client
        self.number = number
        self.model = model
        self.block = block
        self.header = header
        self.rows = rows
        self.start_ns = start_ns
        self.queue_ns = queue_ns
