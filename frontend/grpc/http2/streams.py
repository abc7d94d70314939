"""The streams of an HTTP/2 connection: those open, with what waits to be sent, and those left early. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from shoal.frontend.grpc.http2.events import Sent
from shoal.frontend.grpc.http2.frames import PROTOCOL_ERROR, STREAM_CLOSED, BrokenError

Chunk = bytes | memoryview

#: Streams remembered that we left while their client was still sending.
_MAX_LEFT = 4096


class Queue:
    """What waits to be sent on a stream. Changed by the sending side alone."""

    __slots__ = ("is_ready", "nbytes", "pieces", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[Chunk | Sent] = deque()
        self.nbytes = 0  # of data
        self.trailers: bytes | None = None  # behind it
        self.is_ready = False  # in the round of those that may send


class Stream:
    """One stream, open until we have ended or reset it, or its client has reset it."""

    __slots__ = ("body_left", "is_ended_by_peer", "number", "queue", "receive_window", "send_window", "uncredited")

    def __init__(self, number: int, send_window: int, receive_window: int, is_ended_by_peer: bool) -> None:
        self.number = number
        # Changed by the receiving side.
        self.receive_window = receive_window
        self.uncredited = 0  # bytes consumed of which the client does not know yet
        self.body_left = -1  # bytes that Content-Length has promised and that have not come; -1: it promised nothing
        self.is_ended_by_peer = is_ended_by_peer
        # Changed by the sending side. The window may be negative (RFC 9113, 6.9.2).
        self.send_window = send_window
        self.queue: Queue | None = None  # most responses need none


class Streams:
    """All of one connection."""

    __slots__ = ("last_id", "left", "open")

    def __init__(self) -> None:
        #: Those open. The receiving side adds, the sending side removes.
        self.open: dict[int, Stream] = {}
        #: Those that we left while their client was still sending, the oldest first. Changed by both sides.
        self.left: dict[int, None] = {}
        #: The highest number that the client has used. Changed by the receiving side.
        self.last_id = 0

    @property
    def tokens(self) -> list[tuple[int, Any]]:
        """The tokens that are queued, each behind its stream's number."""
        queues = [(stream.number, stream.queue) for stream in self.open.values() if stream.queue is not None]
        return [(number, piece.token) for number, queue in queues for piece in queue.pieces if isinstance(piece, Sent)]

    @property
    def num_kept(self) -> int:
        """Bytes that are queued and lie in memory that nobody wants back."""
        return sum([num_private(stream.queue.pieces) for stream in self.open.values() if stream.queue is not None])

    def leave(self, number: int) -> None:
        """The client still sends, and nobody listens."""
        if len(self.left) >= _MAX_LEFT:
            del self.left[next(iter(self.left))]
        self.left[number] = None

    def pass_over(self, number: int, is_last: bool) -> None:
        """DATA or HEADERS of a stream that is not open: no error while its client cannot know that we left it."""
        if number == 0 or number > self.last_id:
            raise BrokenError(PROTOCOL_ERROR, "a frame of a stream that was never opened")
        if number not in self.left:
            raise BrokenError(STREAM_CLOSED, "a frame of a closed stream")
        if is_last:
            del self.left[number]


def is_private(piece: Chunk | Sent) -> bool:
    """Whether a piece lies in memory that nobody wants back."""
    return isinstance(piece, bytes) or (isinstance(piece, memoryview) and isinstance(piece.obj, bytes))


def private(piece: Chunk) -> Chunk:
    """A piece, or its copy where it lies in another's memory."""
    return piece if is_private(piece) else bytes(piece)


def num_private(pieces: Iterable[Chunk | Sent]) -> int:
    """Bytes of those that lie in memory that nobody wants back."""
    return sum([len(piece) for piece in pieces if is_private(piece)])
