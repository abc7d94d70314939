"""Blocks for results that no slab takes, each a segment of its own that the supervisor makes when it is asked.

Runs in a worker. Whoever awaits a segment obeys whatever else the supervisor says meanwhile, be it the loop's thread or
one of a response sender. Never on the way of an ordinary result.
"""

import os
import threading
from collections.abc import Callable

from shoal import errors
from shoal.control import Channel, Message
from shoal.errors import ShoalError, UnavailableError
from shoal.shm.layout import ref_owner
from shoal.shm.segment import Segment
from shoal.shm.slab import Block, whole_ref, whole_slab
from shoal.workers.listening import listen_until

#: How long the supervisor and all front ends may take to make and map a segment (ours; then the result fails with 503).
SEGMENT_WAIT_S = 10.0


class OversizeBlocks:
    """This worker's. `listen` takes the next message that comes; the loop, which knows the others, sets it."""

    def __init__(self, channel: Channel, wait_s: float = SEGMENT_WAIT_S) -> None:
        self._channel = channel
        self._wait_s = wait_s
        self.listen: Callable[[], None] = lambda: self.hear(*channel.receive())
        self._allocating = threading.Lock()
        # Changed by allocate, hear and free: the owner ids of the blocks, and what was heard of the one asked for last.
        self._owners: set[int] = set()
        self._request = 0
        self._is_waiting = False
        self._block: Block | None = None
        self._is_ready = False
        self._refusal: ShoalError | None = None

    def allocate(self, nbytes: int) -> Block:
        """A block of `nbytes`, in whole pages. Raises InvalidArgumentError where there never is room, UnavailableError
        where there is none now."""
        with self._allocating:
            return self._allocate(nbytes)

    def _allocate(self, nbytes: int) -> Block:
        self._request += 1
        self._block, self._is_ready, self._refusal, self._is_waiting = None, False, None, True
        self._channel.send({"op": "oversize", "request": self._request, "nbytes": nbytes})
        try:
            self._wait()
        finally:
            self._is_waiting = False
            block, self._block = self._block, None
        if block is not None and self._is_ready:
            return block
        if block is not None:
            self.free(block.ref)
        raise self._take_refusal() or UnavailableError(
            f"no shared memory for a result of {nbytes} bytes: it was not there within {self._wait_s:g} s. Try again"
        )

    def _take_refusal(self) -> ShoalError | None:
        # Kept neither here nor by the frame that raises it: its traceback would keep the requests' memory mapped.
        refusal, self._refusal = self._refusal, None
        return refusal

    def _wait(self) -> None:
        def is_settled() -> bool:
            return self._is_ready or self._refusal is not None

        listen_until(is_settled, self._channel, self.listen, self._wait_s)

    def hear(self, message: Message, fds: list[int]) -> None:
        """Take in what the supervisor says about a segment that was asked for; takes the descriptors."""
        if message["op"] == "oversize_ready":
            self._is_ready = self._block is not None and message["owner"] == ref_owner(self._block.ref)
        elif not (self._is_waiting and message["request"] == self._request):
            if fds:  # too late: nobody waits for it any more
                os.close(fds[0])
                self._channel.send({"op": "oversize_gone", "owner": message["owner"]})
        elif not fds:
            self._refusal = errors.from_wire(message["wire"], message["sentence"])
        else:
            self._owners.add(message["owner"])
            self._block = whole_slab(Segment.attach(fds[0], populate=False))
            self._channel.send({"op": "oversize_mapped", "owner": message["owner"]})

    @property
    def refs(self) -> list[int]:
        """References to all blocks that have not been freed."""
        return [whole_ref(owner) for owner in self._owners]

    def free(self, ref: int) -> None:
        """Nobody needs the block any more; what is not one of these is left alone."""
        owner = ref_owner(ref)
        if owner in self._owners:
            self._owners.remove(owner)
            self._channel.send({"op": "oversize_gone", "owner": owner})
