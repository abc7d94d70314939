"""The batcher as a client of itself: for the steps of ensembles, and for requests that are mirrored to a shadow. Such a
client has no process and no ring. Lives in the batcher."""

from collections import deque

from shoal.batcher.child_traces import TraceParent, TraceRoot
from shoal.batcher.peers import ClientPeer, ScheduledModel
from shoal.batcher.statistics import Compute
from shoal.shm.layout import NUMBER_BITS, P, record
from shoal.shm.ring import Record

#: Number of words of a reply that are kept: all up to PIECES.
NUM_WORDS = P.PIECES + 1


class InnerClient(ClientPeer):
    """A client that collects the replies to its requests."""

    __slots__ = ("_kind", "replies")

    def __init__(self, owner: int, kind: str) -> None:
        """`kind` is the name of such clients in recordings and traces."""
        self._kind = kind
        # The fields of a ClientPeer that are used without a process.
        self.owner = owner
        self.first_key = owner << NUMBER_BITS
        self.backlog = deque()
        self.traced = {0: TraceParent(TraceRoot(0), 0)}  # never empty, so that replies carry their times
        self.is_guest = self.is_front_end = False
        #: Replies that were sent to this client and not yet handled by its owner.
        self.replies: list[Record] = []

    def send(self, reply: Record) -> None:
        """Keep a reply until its owner takes it."""
        self.replies.append(reply if len(reply) >= NUM_WORDS else record(*reply)[:NUM_WORDS])

    @property
    def kind(self) -> str:
        return self._kind

    def block(self, ref: int) -> memoryview | None:
        """Always None: the blocks of this client's requests belong to other processes."""
        return None

    def trace_parent(self, number: int) -> TraceParent | None:
        """Always None: this client's requests are in no trace."""
        return None

    def times(
        self, number: int, model: ScheduledModel, queue_ns: int, compute: Compute
    ) -> tuple[int, int, int, int, int]:
        """When the request was queued, and the computation's start and durations, unchanged."""
        return queue_ns, *compute

    def flush(self) -> bool:
        """Always True: without a ring, no reply waits for room."""
        return True

    def acknowledge(self) -> None:
        """No effect: there is no ring to acknowledge."""
