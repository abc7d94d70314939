"""Holds the replies to streamed requests on the road until the thread that sends them takes them.

That thread waits in `send` until its client reads. Replies that come meanwhile are copied, within the part of the
road's kept memory that one connection may use: so their blocks are released, and the model does not have to wait for
the client. Replies that had no room then are copied later, when their worker asks for its memory (held_answers.py), if
there is room by then. If there is none, and the worker can get memory nowhere else, replies that have held their block
for HOLD_S are dropped, and the client gets an error instead.
"""

import queue
import time
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from shoal.frontend.road.held_answers import HeldAnswers
from shoal.frontend.slow_readers import HOLD_S
from shoal.reasons import Reason
from shoal.shm.port import Reply

#: The queue's placeholder for a reply with a block; the replies themselves are in another list.
_REPLY = object()


@dataclass(slots=True)
class KeptReply(Reply):
    """A reply whose block has been released: its data is a copy, which counts as kept until `forget` is called."""

    kept_by: "StreamedReplies | None" = None

    def forget(self) -> None:
        """Count the copy as no longer kept. Call under the lock of the port."""
        assert self.kept_by is not None, "who made the copy"
        assert self.block is not None, "it was copied"
        self.kept_by.count(-len(self.block))


class StreamedReplies(queue.SimpleQueue[Any]):
    """A queue of replies to one client's requests. Call `put` for a reply under the lock of the port, which guards the
    kept memory, too; take replies without it.

    A reply is copied if something else waits in the queue when it is put.
    """

    def __init__(self, held: HeldAnswers) -> None:
        super().__init__()
        self._held = held
        # Changed under the lock of the port.
        self._kept_bytes = 0
        # The replies in the queue that have a block, and when they came.
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
        read = reply.number, reply.status, reply.reason, copied, reply.header, reply.detail, reply.record
        self.count(len(copied))
        return KeptReply(*read, kept_by=self)

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> int:
        """Copy replies that lie in these segments, and release their blocks; those without room are dropped, if
        `is_urgent` and they have held their block for HOLD_S.

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
