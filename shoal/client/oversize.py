"""Blocks for requests that are too large to share a slab, each a segment of its own that the supervisor makes.

Runs in any client with threads: those that ask wait, the thread that listens to the supervisor passes on what
it says. Never on the way of an ordinary request.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from shoal import errors
from shoal.control import Message
from shoal.errors import UnavailableError
from shoal.shm.layout import ref_owner
from shoal.shm.segment import Segment
from shoal.shm.slab import Block, whole_slab


class Heard(NamedTuple):
    """A message of the supervisor and the descriptors that came with it."""

    message: Message
    fds: list[int]


class OversizeBlocks:
    """This process's. `send` sends the supervisor a message, from any thread."""

    def __init__(self, send: Callable[[Message], None], wait_s: float) -> None:
        self._send = send
        self._wait_s = wait_s
        self._lock = threading.Lock()
        # Changed under the lock: who waits for news of which request for a segment, and of which segment.
        self._request = 0
        self._waiting: dict[int, queue.SimpleQueue[Heard]] = {}
        self._mapped: dict[int, queue.SimpleQueue[Heard]] = {}

    def allocate(self, nbytes: int, model_id: int) -> Block:
        """A block of `nbytes`, in whole pages, that the workers of a model have mapped; `free` it once.

        Raises InvalidArgumentError where there never is room, UnavailableError where there is none now, or too late:
        a worker maps it between two batches.
        """
        deadline = time.monotonic() + self._wait_s
        news: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        with self._lock:
            self._request = request = self._request + 1
            self._waiting[request] = news
        self._send({"op": "oversize", "request": request, "nbytes": nbytes, "model": model_id})
        granted = self._next(self._waiting, request, news, deadline)
        if granted is None:
            raise self._late(nbytes)
        message, fds = granted
        if not fds:
            raise errors.from_wire(message["wire"], message["sentence"])
        owner = message["owner"]
        block = whole_slab(Segment.attach(fds[0], populate=False))
        with self._lock:
            self._mapped[owner] = news
        self._send({"op": "oversize_mapped", "owner": owner})
        if self._next(self._mapped, owner, news, deadline) is None:
            self.free(block.ref)
            raise self._late(nbytes)
        return block

    def _next(
        self,
        waiting: "dict[int, queue.SimpleQueue[Heard]]",
        key: int,
        news: "queue.SimpleQueue[Heard]",
        deadline: float,
    ) -> Heard | None:
        try:
            return news.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            with self._lock:
                # Whoever tells us takes the entry away: where it is gone, the news has come this instant.
                return None if waiting.pop(key, None) is not None else news.get_nowait()

    def _late(self, nbytes: int) -> UnavailableError:
        return UnavailableError(
            f"Request timeout expired: no shared memory for {nbytes} bytes within {self._wait_s:g} s "
            "(--request-timeout-secs)"
        )

    def hear(self, message: Message, fds: list[int]) -> None:
        """Pass on what the supervisor says about a segment; takes the descriptors."""
        with self._lock:
            if message["op"] == "oversize":
                waiter = self._waiting.pop(message["request"], None)
            else:
                waiter = self._mapped.pop(message["owner"], None)
            if waiter is not None:
                waiter.put(Heard(message, fds))
                return
        if fds:  # nobody waits for it any more
            os.close(fds[0])
            self._send({"op": "oversize_gone", "owner": message["owner"]})

    def free(self, ref: int) -> None:
        """The block's request has been answered, or was never submitted."""
        self._send({"op": "oversize_gone", "owner": ref_owner(ref)})
