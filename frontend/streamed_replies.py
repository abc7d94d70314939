"""The replies to streamed requests on the road, until the thread that sends them takes them.

That thread waits for its client in `send`. Replies that come meanwhile are copied, within the share of the road's kept
memory that a connection has: so their blocks go back to the model, which does not wait for the client with them.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.frontend.kept_memory import KeptMemory
from shoal.shm.port import Reply


@dataclass(slots=True)
class KeptReply(Reply):
    """A reply whose block has been released: what lay in it is a copy, which counts until it is forgotten."""

    kept_by: "StreamedReplies | None" = None

    def forget(self) -> None:
        """The copy is not needed any more. Under the lock of the port."""
        assert self.kept_by is not None, "who made the copy"
        assert self.block is not None, "it was copied"
        self.kept_by.count(-len(self.block))


class StreamedReplies(queue.SimpleQueue[Any]):
    """Replies to the requests of one client. `put` them under the lock of the port, which guards the kept memory, too.

    A reply is copied while something else waits to be taken.
    """

    def __init__(self, kept: KeptMemory, release: Callable[[int, int], None]) -> None:
        """`release` is the port's."""
        super().__init__()
        self._kept = kept
        self._release = release
        # Changed under the lock of the port.
        self._kept_bytes = 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """A reply has come, or news of the client, for which no lock is needed."""
        if isinstance(item, Reply) and item.block is not None and not self.empty():
            nbytes = len(item.block)
            if self._kept.has_room(self._kept_bytes, nbytes):
                copied = memoryview(bytes(item.block))
                self._release(item.number, item.part)
                read = item.number, item.status, item.reason, copied, item.header, item.detail, item.record
                item = KeptReply(*read, kept_by=self)
                self.count(nbytes)
        super().put(item, block, timeout)

    def count(self, nbytes: int) -> None:
        """So many bytes more are kept, or fewer. Under the lock of the port."""
        self._kept_bytes += nbytes
        self._kept.nbytes += nbytes
