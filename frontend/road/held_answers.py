"""Answers that the road sends out of workers' blocks, until they are sent or a worker recalls its memory.

A client reads at its own pace. A worker that lacks memory meanwhile recalls what it has in clients' hands
(slow_readers.py): the unsent rest of an answer is copied then, within what the road keeps (kept_memory.py), and the
block given back. An answer for which there is no room keeps its block until the worker can have memory nowhere else:
then its connection ends, if it has had its time.

Request threads send, the thread that listens recalls; both under the lock of the port.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Protocol

from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.response import Response
from shoal.frontend.slow_readers import HOLD_S, SlowReaderLog
from shoal.shm.port import Port

#: WSGI wants bytes, so a view of a block is copied to be sent: all of it, or a piece at a time of a longer answer.
PIECE_BYTES = 1 << 20


class UnsentReplies(Protocol):
    """Replies that wait for the thread that sends them (streamed_replies.py)."""

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> int:
        """Like `HeldAnswers.recall`; returns how many replies were dropped."""
        ...


class HeldAnswers:
    """The responses of one process that are being sent."""

    def __init__(self, port: Port, lock: threading.Lock, kept: KeptMemory) -> None:
        """`lock` is the port's, and guards `kept`, too."""
        self.port = port
        self.lock = lock
        self.kept = kept
        self._given_up = SlowReaderLog("responses")
        # Changed under the lock: those that still hold a block, the longest first.
        self.holding: dict[HeldAnswer, None] = {}
        self.unread: dict[UnsentReplies, None] = {}  # and those where replies with a block wait

    def send(self, response: Response, number: int, part: int) -> Response:
        """The response as it is sent. `number` and `part` are of the reply whose block its chunks may be views of.

        The block is released at once if the response does not need it, or cannot be sent; else by the response's
        `close` at the latest.
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
        """Copy the rest of answers that lie in these segments, and give their blocks back. Under the lock.

        If there is no room for a copy, and `is_urgent`, the response ends, but not before its time.
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
    """The bytes of one answer, piece by piece."""

    def __init__(self, held: HeldAnswers, chunks: Sequence[bytes | memoryview], number: int, part: int) -> None:
        self.number = number
        self.part = part
        self.since_s = time.monotonic()
        self._held = held
        # Changed under the lock: what is unsent; how much of it is kept, once it is a copy; whether it ended too early.
        self._chunks = deque([memoryview(chunk) for chunk in chunks])
        self._kept_bytes = 0
        self._is_given_up = False
        with held.lock:
            held.holding[self] = None

    def __next__(self) -> bytes:
        with self._held.lock:
            if self._is_given_up:
                # Of this one gunicorn is silent.
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
        """Copy the unsent rest and release the block; False if there is no room for it. Call under the lock."""
        nbytes = sum(map(len, self._chunks))
        if not self._held.kept.fits(nbytes):
            return False
        self._chunks = deque([memoryview(bytes(chunk)) for chunk in self._chunks])
        self._count(nbytes)
        self._give_back()
        return True

    def give_up(self) -> None:
        """Release the block; the sending thread ends the connection. Call under the lock."""
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
