"""Blocks for results that no slab takes, each in an oversize segment that the supervisor makes on request.

Runs in a worker. The thread that waits for a segment (the loop's, or one with a response sender) meanwhile also applies
other messages of the supervisor. No result of ordinary size needs such a segment.

A segment's block is in `refs` only once the segment's readers have mapped the segment: a dead batcher's successor is
sent all blocks in `refs`, and would free one whose result is not yet published.
"""

import math
import threading
import time
from collections.abc import Callable

from shoal import errors
from shoal.control import Channel
from shoal.errors import ShoalError, UnavailableError
from shoal.fault import IS_ARMED, reached
from shoal.messages import shared
from shoal.messages.message import close_descriptors
from shoal.shm.segment import Segment
from shoal.shm.slab import Block
from shoal.shm.whole_slabs import KEEP_S, WholeSlabs
from shoal.workers.segments import listen_until

#: Seconds that the supervisor and all front ends may take to make and map a segment; then the result fails with status
#: 503 (ours).
SEGMENT_WAIT_S = 10.0
#: Stands for the readers of results, the batcher and all front ends, in calls of `_slabs`.
_ALL = 0


class WorkerOversizeBlocks:
    """The oversize segments of this worker. `listen` applies the supervisor's next message; the loop sets it, since it
    has the handlers of all messages."""

    def __init__(self, channel: Channel, wait_s: float = SEGMENT_WAIT_S) -> None:
        self._channel = channel
        self._wait_s = wait_s
        #: Whether other threads than the loop's free blocks, too. Only the loop's thread calls `look`, before it
        #: sleeps.
        self.is_shared = False
        self.listen: Callable[[], None] = lambda: self.receive(channel.receive(shared.PAYLOAD_NEWS)[0])
        self._allocating = threading.Lock()
        self._slabs = WholeSlabs()
        #: Segments by owner id that hold a result or are kept for the next one; while there are any, `look` is called.
        self.segments = self._slabs.segments
        # Changed by allocate and receive: the number of the last request for a segment, and the supervisor's answers.
        self._request = 0
        self._is_waiting = False
        self._segment: Segment | None = None
        self._may_be_kept = self._is_ready = False
        self._refusal: ShoalError | None = None

    def allocate(self, nbytes: int) -> Block:
        """A writable block of at least `nbytes` bytes, in whole pages, which is the caller's until `free`. Raises
        InvalidArgumentError if there is never room, UnavailableError if there is none now."""
        with self._allocating:
            return self._slabs.allocate(nbytes, _ALL) or self._allocate(nbytes)

    def allocate_kept(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes` bytes in a kept segment, without waiting; None if none is free and large
        enough."""
        return self._slabs.allocate(nbytes, _ALL)

    def _allocate(self, nbytes: int) -> Block:
        self._request += 1
        self._segment, self._is_ready, self._refusal, self._is_waiting = None, False, None, True
        self._channel.send(shared.PayloadWanted(self._request, nbytes))
        try:
            listen_until(lambda: self._is_ready or self._refusal is not None, self._channel, self.listen, self._wait_s)
        finally:
            self._is_waiting = False
            segment, self._segment = self._segment, None
        if segment is not None and self._is_ready:
            return self._slabs.add(segment, _ALL, may_be_kept=self._may_be_kept)
        if segment is not None:
            self._channel.send(shared.PayloadReleased(segment.header.owner))
        if isinstance(self._refusal, UnavailableError) and self._release_kept(math.inf)[0]:
            return self._allocate(nbytes)  # kept segments, released now, had counted towards this worker's limit
        raise self._take_refusal() or UnavailableError(
            f"no shared memory for a result of {nbytes} bytes: it was not there within {self._wait_s:g} s. Try again"
        )

    def _take_refusal(self) -> ShoalError | None:
        # Neither this object nor the frame that raises the error keeps it: its traceback would keep the requests'
        # memory mapped.
        refusal, self._refusal = self._refusal, None
        return refusal

    def receive(self, message: shared.PayloadNews) -> None:
        """Apply the supervisor's answer to a request for a segment; takes over the descriptor."""
        if isinstance(message, shared.PayloadReady):
            self._is_ready = self._segment is not None and message.owner == self._segment.header.owner
            return
        is_awaited = self._is_waiting and message.request == self._request
        if isinstance(message, shared.PayloadRefused):
            if is_awaited:
                self._refusal = errors.from_wire(message.wire, message.sentence)
        elif is_awaited:
            self._segment = Segment.attach(message.segment, populate=False)
            self._may_be_kept = message.may_be_kept
            self._channel.send(shared.PayloadMapped(message.owner))
        else:  # no thread awaits the segment any more
            close_descriptors(message)
            self._channel.send(shared.PayloadReleased(message.owner))
        if IS_ARMED:
            reached("mapped")

    @property
    def refs(self) -> list[int]:
        """References to all blocks that have not been freed, except in segments that their readers have not yet
        mapped."""
        return self._slabs.taken_refs

    def free(self, ref: int) -> None:
        """Free a block; a reference to any other block has no effect."""
        if owner := self._slabs.free(ref, time.monotonic(), keep=True):
            self._channel.send(shared.PayloadReleased(owner))

    def look(self) -> float | None:
        """Release kept segments that have not been used for too long. Returns in how many seconds it is to be called
        again; None: it need not be called."""
        _, left_s = self._release_kept(time.monotonic())
        if left_s is None and self.is_shared and self.segments:
            return KEEP_S  # another thread may free a block while the loop's thread sleeps
        return left_s

    def _release_kept(self, now_s: float) -> tuple[list[int], float | None]:
        """Release kept segments that expire at `now_s`; returns the result of `WholeSlabs.expire`."""
        idle, left_s = self._slabs.expire(now_s)
        for owner in idle:
            self._channel.send(shared.PayloadReleased(owner))
        return idle, left_s
