"""Blocks for requests that are too large for a slab: each a segment of its own, made by the supervisor.

Runs in any client with threads: a thread that allocates waits, and the thread that listens to the supervisor passes on
the answers. Never used on the path of an ordinary request.
"""

import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal import errors
from shoal.errors import ShoalError, UnavailableError
from shoal.fault import IS_ARMED, reached
from shoal.messages import shared
from shoal.messages.message import Message, close_descriptors
from shoal.shm.segment import Segment
from shoal.shm.slab import Block
from shoal.shm.whole_slabs import WholeSlabs


class ClientOversizeBlocks:
    """The oversize segments of one client. `send` sends the supervisor a message, from any thread; an allocation waits
    for its segment for `wait_s` seconds at most."""

    def __init__(self, send: Callable[[Message], None], wait_s: float) -> None:
        self._send = send
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._slabs = WholeSlabs()
        # Changed under the lock: queues of waiting threads, by number of the request for a segment, and by the
        # segment's owner id.
        self._request = 0
        self._waiting: dict[int, queue.SimpleQueue[shared.PayloadNews]] = {}
        self._mapped: dict[int, queue.SimpleQueue[shared.PayloadNews]] = {}

    def allocate(self, nbytes: int, model_id: int, deadline_s: float = math.inf) -> Block:
        """A block of `nbytes`, in whole pages, that a model's workers have mapped by `deadline_s` (monotonic); the
        caller must `free` it once.

        Raises InvalidArgumentError if the payload can never fit, UnavailableError if there is no room now, or none in
        time: a worker maps it between two batches.
        """
        if (kept := self._slabs.allocate(nbytes, model_id)) is not None:
            return kept
        deadline_s = min(deadline_s, time.monotonic() + self._wait_s)
        news: queue.SimpleQueue[shared.PayloadNews] = queue.SimpleQueue()
        with self._lock:
            self._request = request = self._request + 1
            self._waiting[request] = news
        self._send(shared.PayloadWanted(request, nbytes, model_id))
        granted = self._next(self._waiting, request, news, deadline_s)
        if granted is None:
            raise self._late(nbytes)
        if isinstance(granted, shared.PayloadRefused):
            raise errors.from_wire(granted.wire, granted.sentence)
        assert isinstance(granted, shared.PayloadGranted)
        owner = granted.owner
        segment = Segment.attach(granted.segment, populate=False)
        block = self._slabs.add(segment, model_id, may_be_kept=granted.may_be_kept)
        with self._lock:
            self._mapped[owner] = news
        self._send(shared.PayloadMapped(owner))
        ready = self._next(self._mapped, owner, news, deadline_s)
        if ready is None or isinstance(ready, shared.PayloadRefused):
            with suppress(OSError):  # the supervisor may be gone
                self.free(block.ref)
            raise self._late(nbytes) if ready is None else errors.from_wire(ready.wire, ready.sentence)
        if IS_ARMED:
            reached("mapped")
        return block

    def _next(
        self,
        waiting: "dict[int, queue.SimpleQueue[shared.PayloadNews]]",
        key: int,
        news: "queue.SimpleQueue[shared.PayloadNews]",
        deadline_s: float,
    ) -> shared.PayloadNews | None:
        try:
            return news.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            with self._lock:
                # `receive` removes the entry: if it is gone, the answer has just arrived.
                return None if waiting.pop(key, None) is not None else news.get_nowait()

    def _late(self, nbytes: int) -> UnavailableError:
        return UnavailableError(
            f"Request timeout expired: no shared memory for {nbytes} bytes within {self._wait_s:g} s "
            "(--request-timeout-secs)"
        )

    def receive(self, message: shared.PayloadNews) -> None:
        """Pass on the supervisor's answer about a segment; takes over its descriptor."""
        with self._lock:
            if isinstance(message, shared.PayloadReady):
                waiter = self._mapped.pop(message.owner, None)
            else:
                waiter = self._waiting.pop(message.request, None)
            if waiter is not None:
                waiter.put(message)
                return
        if isinstance(message, shared.PayloadGranted):  # the waiting thread has given up
            close_descriptors(message)
            self._send(shared.PayloadReleased(message.owner))

    def lose(self, why: ShoalError) -> None:
        """Fail all waiting allocations with this error: the supervisor is gone, or the server ends."""
        with self._lock:
            waiting = [*self._waiting.values(), *self._mapped.values()]
            self._waiting.clear()
            self._mapped.clear()
            for waiter in waiting:
                waiter.put(shared.PayloadRefused(0, why.wire, str(why)))

    def free(self, ref: int, *, keep: bool = False) -> None:
        """Free a block whose request has been answered, or was never submitted. With `keep` it is kept for the next
        one; the caller must then call `look`."""
        if owner := self._slabs.free(ref, time.monotonic(), keep=keep):
            self._send(shared.PayloadReleased(owner))

    def look(self) -> float | None:
        """Give back kept segments that were not reused in time. Returns the seconds until the next call, or None."""
        if not self._slabs.kept:
            return None
        idle, left_s = self._slabs.expire(time.monotonic())
        for owner in idle:
            self._send(shared.PayloadReleased(owner))
        return left_s
