"""The streams of an HTTP/2 connection: the open ones, with their queues of unsent data, and those that the server ended
before the client did. Pure."""

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from shoal.frontend.grpc.http2.events import Sent
from shoal.frontend.grpc.http2.frames import PROTOCOL_ERROR, STREAM_CLOSED, BrokenError

Chunk = bytes | memoryview

#: The most streams that are remembered because the server ended them while the client was still sending.
_MAX_LEFT = 4096


class Queue:
    """The unsent data of a stream. Changed by the sending side alone. Behind the pieces of each message that lies in
    another process's memory stands a mark, a Sent (events.py)."""

    __slots__ = ("is_ready", "nbytes", "num_lent", "num_taken", "pieces", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[Chunk | Sent] = deque()
        self.nbytes = 0  # bytes of data
        self.num_lent = 0  # number of marks, and so of messages that lie in another process's memory
        self.num_taken = 0  # bytes that have left the queue
        self.trailers: bytes | None = None  # sent behind the data
        self.is_ready = False  # whether the stream is among those that take turns

    def keep(self, most_bytes: int) -> list[Sent]:
        """Copy the first messages that lie in another process's memory, at most `most_bytes` bytes. Returns the marks
        of these messages, which are taken out of the queue."""
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
        """Whether a message that lies in another process's memory has been in the queue since before `then_s`."""
        return self.num_lent > 0 and next(each.since_s for each in self.pieces if isinstance(each, Sent)) < then_s

    def lent_since_s(self, is_wanted: Callable[[Any], bool]) -> float:
        """When the oldest message came into the queue that lies in another process's memory under a token (the lane's
        name of the reply) for which `is_wanted` is true; in monotonic s, inf if there is no such message."""
        marks = [each for each in self.pieces if isinstance(each, Sent)] if self.num_lent else ()
        return next((each.since_s for each in marks if is_wanted(each.token)), inf)


class Stream:
    """One stream, open until the server has ended or reset it, or its client has reset it."""

    __slots__ = (
        "body_left", "headers", "is_ended_by_peer", "number", "queue", "receive_window", "send_window", "uncredited",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        send_window: int,
        receive_window: int,
        is_ended_by_peer: bool,
        headers: Mapping[str, str],
    ) -> None:
        self.number = number
        self.headers = headers  # the request's; streams may share equal headers
        # The fields below are changed by the receiving side.
        self.receive_window = receive_window
        self.uncredited = 0  # consumed bytes for which no WINDOW_UPDATE has been sent yet
        self.body_left = -1  # bytes of the Content-Length that have not come; -1: there was no Content-Length
        self.is_ended_by_peer = is_ended_by_peer
        # The fields below are changed by the sending side. The window may be negative (RFC 9113, 6.9.2).
        self.send_window = send_window
        self.queue: Queue | None = None  # most responses need none


class Streams:
    """All streams of one connection."""

    __slots__ = ("last_id", "left", "open")

    def __init__(self) -> None:
        #: Open streams. The receiving side adds, the sending side removes.
        self.open: dict[int, Stream] = {}
        #: Streams that the server ended while the client was still sending, oldest first. Changed by both sides.
        self.left: dict[int, None] = {}
        #: The highest number of a stream that the client has used. Changed by the receiving side.
        self.last_id = 0

    def queue_of(self, number: int) -> Queue | None:
        """The queue of a stream that has or had unsent data; None if it had none, or is not open."""
        stream = self.open.get(number)
        return None if stream is None else stream.queue

    def lent_before(self, then_s: float) -> list[tuple[Stream, Queue]]:
        """The streams with an unsent message that lies in another process's memory and has been in the queue since
        before `then_s`."""
        queues = [(each, each.queue) for each in self.open.values() if each.queue is not None]
        return [(stream, queue) for stream, queue in queues if queue.is_lent_before(then_s)]

    def leave(self, number: int) -> None:
        """Remember a stream that the server has ended, so that frames which the client still sends on the stream are
        ignored."""
        if len(self.left) >= _MAX_LEFT:
            del self.left[next(iter(self.left))]
        self.left[number] = None

    def pass_over(self, number: int, is_last: bool) -> None:
        """Ignore DATA or HEADERS of a stream that the server has ended, which the client may not know yet; `is_last`:
        the frame ends the client's side. Raises BrokenError for any other stream."""
        if number == 0 or number > self.last_id:
            raise BrokenError(PROTOCOL_ERROR, "a frame of a stream that was never opened")
        if number not in self.left:
            raise BrokenError(STREAM_CLOSED, "a frame of a closed stream")
        if is_last:
            del self.left[number]


def _is_own(piece: Chunk) -> bool:
    """Whether a piece lies in memory of this process alone: such a piece need not be copied."""
    return isinstance(piece, bytes) or isinstance(piece.obj, bytes)
