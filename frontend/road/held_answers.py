"""The responses that the road sends straight out of workers' blocks, and the replies that wait for the thread which
sends them, until they are sent or a worker wants its memory back.

A client may read slowly. A worker that lacks memory meanwhile asks for the blocks that clients' responses hold: then
the unsent rest of a response is copied, within the road's memory for such copies (kept_memory.py), and the block is
released. A response for whose copy there is no room keeps its block until the worker can get memory nowhere else; then
the connection is closed, if the response has held the block for HOLD_S.

Request threads send, the listening thread makes the copies; both under the lock of the port.
"""

import errno
import queue
import threading
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Any

from shoal.frontend.kept_memory import HOLD_S, KeptMemory, slow_reader_log
from shoal.frontend.response import Response
from shoal.frontend.road.kept_reply import KeptReply
from shoal.reasons import Reason
from shoal.shm.port import Port, Reply

#: WSGI wants bytes, so a view of a block is copied to be sent, in pieces of at most so many bytes.
PIECE_BYTES = 1 << 20


class HeldAnswers:
    """All responses that one process is sending out of workers' blocks."""

    def __init__(self, port: Port, lock: threading.Lock, kept: KeptMemory) -> None:
        """`lock` is the port's, and guards `kept`, too."""
        self.port = port
        self.lock = lock
        self.kept = kept
        self._given_up = slow_reader_log("responses")
        # Changed under the lock: responses that still hold a block, the oldest first.
        self.holding: dict[HeldAnswer, None] = {}
        self.unread: dict[StreamedReplies, None] = {}  # queues in which replies that hold a block wait

    def send(self, response: Response, number: int, part: int) -> Response:
        """The response to give to gunicorn. The chunks of `response` may lie in the block of the reply `number`,
        `part`.

        The block is released at once if the response is small, does not use the block, or fails to be made; else at the
        latest by `close` of the returned response.
        """
        nbytes = sum(map(len, response.chunks))
        if nbytes <= PIECE_BYTES or all(isinstance(chunk, bytes) for chunk in response.chunks):
            try:
                return response._replace(chunks=tuple([bytes(chunk) for chunk in response.chunks]))
            finally:
                self._release(number, part)
        held = HeldAnswer(self, response.chunks, number, part)
        headers = (*response.headers, ("Content-Length", str(nbytes)))
        return response._replace(headers=headers, chunks=(), close=held.close, stream=held)

    def _release(self, number: int, part: int) -> None:
        with self.lock:
            self.port.release(number, part)
            self.port.flush()

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> None:
        """Copy the unsent rest of responses that lie in these segments, and release their blocks. Called under the
        lock.

        With `is_urgent`, responses for whose copies there is no room are ended once they have held their block for
        HOLD_S.
        """
        self._given_up.log(now_s)
        for held in list(self.holding):
            if not self.port.lies_in(held.number, held.part, segments) or held.keep():
                continue
            if is_urgent and now_s - held.since_s >= HOLD_S:
                held.give_up()
                self._given_up.add(now_s)
        for unread in self.unread:
            for _ in range(unread.recall(segments, now_s, is_urgent=is_urgent)):
                self._given_up.add(now_s)


class HeldAnswer(Iterator[bytes]):
    """The body of one response, an iterator of its pieces."""

    def __init__(self, held: HeldAnswers, chunks: Sequence[bytes | memoryview], number: int, part: int) -> None:
        self.number = number
        self.part = part
        self.since_s = time.monotonic()
        self._held = held
        # Changed under the lock: the unsent rest; how many bytes of the rest are copied; whether the response was given
        # up.
        self._chunks = deque([memoryview(chunk) for chunk in chunks])
        self._kept_bytes = 0
        self._is_given_up = False
        with held.lock:
            held.holding[self] = None

    def __next__(self) -> bytes:
        with self._held.lock:
            if self._is_given_up:
                # This exception ends the connection; gunicorn does not log it.
                raise ConnectionResetError(errno.ECONNRESET, "the client reads too slowly")
            if not self._chunks:
                raise StopIteration
            chunk = self._chunks.popleft()
            piece = bytes(chunk[:PIECE_BYTES])
            if len(chunk) > PIECE_BYTES:
                self._chunks.appendleft(chunk[PIECE_BYTES:])
            self._count(-min(len(piece), self._kept_bytes))
            if not self._chunks:
                self._give_back()
        return piece

    def keep(self) -> bool:
        """Copy the unsent rest and release the block; returns false if there is no room for the copy. Call under the
        lock."""
        nbytes = sum(map(len, self._chunks))
        if not self._held.kept.fits(nbytes):
            return False
        self._chunks = deque([memoryview(bytes(chunk)) for chunk in self._chunks])
        self._count(nbytes)
        self._give_back()
        return True

    def give_up(self) -> None:
        """Release the block; the thread that sends the response closes its connection then. Call under the lock."""
        self._is_given_up = True
        self._chunks.clear()
        self._give_back()

    def close(self) -> None:
        """End the response and release its block."""
        with self._held.lock:
            self._chunks.clear()
            self._count(-self._kept_bytes)
            self._give_back()

    def _count(self, nbytes: int) -> None:
        self._kept_bytes += nbytes
        self._held.kept.nbytes += nbytes

    def _give_back(self) -> None:
        if self in self._held.holding:
            del self._held.holding[self]
            self._held.port.release(self.number, self.part)
            self._held.port.flush()


#: Stands in a StreamedReplies queue for a reply with a block; the reply itself is in `_unread`.
_REPLY = object()


class StreamedReplies(queue.SimpleQueue[Any]):
    """A queue of replies to one client's requests. Call `put` for a reply under the lock of the port, which guards the
    kept memory, too; take replies without it.

    The thread that takes them waits until its client reads. A reply that finds the queue not empty is copied, within
    the part of the kept memory that one connection may use: its block is released, and the model does not have to wait
    for the client. If there is no room for the copy, not even later, when the worker can get memory nowhere else, a
    reply that has held its block for HOLD_S is dropped: the client gets an error.
    """

    def __init__(self, held: HeldAnswers) -> None:
        super().__init__()
        self._held = held
        # Changed under the lock of the port: bytes of the copies that still count as kept.
        self._kept_bytes = 0
        # The replies in the queue that have a block or a copy of it, and when they came.
        self._unread: deque[tuple[Reply, float]] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add a reply, under the port's lock; or, without the lock, a notice about the client (see Waiter)."""
        if isinstance(item, Reply) and item.block is not None:
            reply = item if self.empty() else self._copied(item) or item
            self._unread.append((reply, time.monotonic()))
            self._held.unread[self] = None
            item = _REPLY
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self._taken(super().get(block, timeout))

    def get_nowait(self) -> Any:
        return self._taken(super().get_nowait())

    def _taken(self, item: Any) -> Any:
        if item is not _REPLY:
            return item
        with self._held.lock:
            reply, _ = self._unread.popleft()
            if not self._unread:
                self._held.unread.pop(self, None)
        return reply

    def _copied(self, reply: Reply) -> KeptReply | None:
        """A copy of the reply, whose block has been released; None if there is no room for a copy."""
        assert reply.block is not None, "what has none needs no copy"
        if not self._held.kept.has_room(self._kept_bytes, len(reply.block)):
            return None
        copied = memoryview(bytes(reply.block))
        self._held.port.release(reply.number, reply.part)
        self.count(len(copied))
        return KeptReply(reply, copied, self.count)

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> int:
        """Copy replies that lie in these segments, and release their blocks; with `is_urgent`, replies for whose copies
        there is no room are dropped once they have held their block for HOLD_S.

        Returns how many were dropped. Called under the port's lock.
        """
        num_dropped = 0
        for position, (reply, since_s) in enumerate(self._unread):
            if isinstance(reply, KeptReply) or reply.block is None:
                continue
            if not self._held.port.lies_in(reply.number, reply.part, segments):
                continue
            other: Reply | None = self._copied(reply)
            if other is None and is_urgent and now_s - since_s >= HOLD_S:
                self._held.port.release(reply.number, reply.part)
                other = Reply(reply.number, 0, int(Reason.NO_MEMORY), None, None, reply.detail, reply.record)
                num_dropped += 1
            if other is not None:
                self._unread[position] = other, since_s
        self._held.port.flush()
        return num_dropped

    def count(self, nbytes: int) -> None:
        """Add to the number of kept bytes (negative: subtract). Call under the lock of the port."""
        self._kept_bytes += nbytes
        self._held.kept.nbytes += nbytes
