"""The client of requests that the batcher mirrors to a shadow; it has no process and no ring. Lives in the batcher."""

from collections import deque

from shoal.batcher.child_traces import TraceParent, TraceRoot
from shoal.batcher.peers import ClientPeer, ScheduledModel
from shoal.batcher.statistics import Compute
from shoal.shm.layout import MIRROR_OWNER, NUMBER_BITS, P, Record, record

#: The words of a reply that are read.
_NUM_WORDS = P.PIECES + 1


class MirrorClient(ClientPeer):
    """Collects the replies to mirrored requests, which no client waits for."""

    __slots__ = ("replies",)

    def __init__(self) -> None:
        # Of a ClientPeer's fields, those that are used without a process.
        self.owner = MIRROR_OWNER
        self.first_key = MIRROR_OWNER << NUMBER_BITS
        self.backlog = deque()
        self.traced = {0: TraceParent(TraceRoot(0), 0)}  # never empty, so that replies carry their times
        self.is_guest = self.is_front_end = False
        #: Replies that were sent and not handled yet.
        self.replies: list[Record] = []

    def send(self, reply: Record) -> None:
        """Keep a reply until the mirror takes it."""
        self.replies.append(reply if len(reply) >= _NUM_WORDS else record(*reply)[:_NUM_WORDS])

    @property
    def kind(self) -> str:
        return "shadow"

    def block(self, ref: int) -> memoryview | None:
        """None: the block is another client's."""
        return None

    def trace_parent(self, number: int) -> TraceParent | None:
        """None: a mirrored request is in no trace."""
        return None

    def times(
        self, number: int, model: ScheduledModel, queue_ns: int, compute: Compute
    ) -> tuple[int, int, int, int, int]:
        """When the request was queued, and the computation's start and durations, unchanged."""
        return queue_ns, *compute

    def flush(self) -> bool:
        """No effect, and nothing waits: there is no ring to publish."""
        return True

    def acknowledge(self) -> None:
        """No effect: there is no ring that was read."""
