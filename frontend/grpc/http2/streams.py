"""The streams of an HTTP/2 connection: those open, with what waits to be sent, and those left early. Pure."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from shoal.frontend.grpc.http2.events import Sent
from shoal.frontend.grpc.http2.frames import PROTOCOL_ERROR, STREAM_CLOSED, BrokenError

Chunk = bytes | memoryview

#: Streams remembered that we left while their client was still sending.
_MAX_LEFT = 4096


class Queue:
    """What waits to be sent on a stream. Changed by the sending side alone."""

    __slots__ = ("is_ready", "nbytes", "num_lent", "num_taken", "pieces", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[Chunk | Sent] = deque()
        self.nbytes = 0  # of data
        self.num_lent = 0  # marks: messages whose memory is another's
        self.num_taken = 0  # bytes that have left it
        self.trailers: bytes | None = None  # behind it
        self.is_ready = False  # in the round of those that may send

    def keep(self, most_bytes: int) -> list[Sent]:
        """Copy the first messages that lie in another's memory, at most so many bytes; their marks, taken out."""
        pieces, copies, kept, start = list(self.pieces), list[Chunk](), list[Sent](), 0
        for position, mark in enumerate(pieces):
            if isinstance(mark, Sent):
                message = [each for each in pieces[start:position] if not isinstance(each, Sent)]
                most_bytes -= sum([len(each) for each in message if not _is_own(each)])
                if most_bytes < 0:
                    break
                copies += [each if _is_own(each) else bytes(each) for each in message]
                kept.append(mark)
                start = position + 1
        if kept:
            self.pieces = deque([*copies, *pieces[start:]])
            self.num_lent -= len(kept)
        return kept

    def is_lent_before(self, then_s: float) -> bool:
        """Whether it has a message that was given before then and lies in another's memory."""
        return self.num_lent > 0 and next(each.since_s for each in self.pieces if isinstance(each, Sent)) < then_s

    def lent_since_s(self, is_wanted: Callable[[Any], bool]) -> float:
        """When the first message was given whose token, and so whose memory, is wanted back; inf: there is none."""
        marks = [each for each in self.pieces if isinstance(each, Sent)] if self.num_lent else ()
        return next((each.since_s for each in marks if is_wanted(each.token)), inf)


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
    """All streams of one connection."""

    __slots__ = ("last_id", "left", "open")

    def __init__(self) -> None:
        #: Open streams. The receiving side adds, the sending side removes.
        self.open: dict[int, Stream] = {}
        #: Streams that were ended here while their client was still sending, oldest first. Changed by both sides.
        self.left: dict[int, None] = {}
        #: The highest number that the client has used. Changed by the receiving side.
        self.last_id = 0

    def queue_of(self, number: int) -> Queue | None:
        """What waits to be sent on a stream, where anything does or did."""
        stream = self.open.get(number)
        return None if stream is None else stream.queue

    def lent_before(self, then_s: float) -> list[tuple[Stream, Queue]]:
        """The streams that wait to send messages which were given before then and lie in another's memory."""
        queues = [(each, each.queue) for each in self.open.values() if each.queue is not None]
        return [(stream, queue) for stream, queue in queues if queue.is_lent_before(then_s)]

    def leave(self, number: int) -> None:
        """Ignore what the client still sends on a stream."""
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


def _is_own(piece: Chunk) -> bool:
    """Whether a piece lies in memory of this process alone: such a copy may be sent in part."""
    return isinstance(piece, bytes) or isinstance(piece.obj, bytes)
