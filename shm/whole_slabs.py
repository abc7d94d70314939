"""Segments of one block each, for payloads that no slab takes, as the process that writes them has them.

    added ─► taken ─► freed ─► let go of, or kept ─► taken again, by a payload for the same readers ─► …
                                              └─► idle for KEEP_S ─► let go of

To make such a segment takes longer than to fill it: of 16 MiB the supervisor clears the pages (7 ms of CPU), the
writer meets each of them for the first time (8 ms), and so does a reader (3 ms). Kept, it is as a block of a slab is:
free when its last reader is done, and of another generation when it is handed out again, so that older references are
stale.
Any thread may call. Which may be kept is the supervisor's to say, whose bound on all of them it is.
"""

import threading
from dataclasses import dataclass

from shoal.shm.segment import Segment
from shoal.shm.slab import Block, WholeSlab

#: How long one is kept that nobody needs (ours).
KEEP_S = 1.0
#: A payload is not put where so many times its size would be kept from larger ones (ours).
_MOST_TIMES = 4


@dataclass(slots=True, eq=False)
class _Written:
    slab: WholeSlab
    readers: int
    may_be_kept: bool
    idle_since_s: float = 0.0


class WholeSlabs:
    """This process's. `readers` is whatever tells apart who has a segment mapped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Changed under the lock: by the reference to its block, and, the longest idle first, those that are kept.
        self._taken: dict[int, _Written] = {}
        self.kept: list[_Written] = []
        #: Both kinds, by owner id.
        self.segments: dict[int, _Written] = {}

    @property
    def taken_refs(self) -> list[int]:
        """References to all blocks that have not been freed."""
        return list(self._taken)

    def add(self, segment: Segment, readers: int, *, may_be_kept: bool) -> Block:
        """The block of a segment that has just been mapped."""
        written = _Written(WholeSlab(segment), readers, may_be_kept)
        self.segments[written.slab.owner] = written
        return self._take(written)

    def allocate(self, nbytes: int, readers: int) -> Block | None:
        """A block that was kept, contents undefined; None where none is right."""
        if not self.kept:
            return None
        with self._lock:
            for written in reversed(self.kept):
                if written.readers == readers and nbytes <= written.slab.nbytes <= _MOST_TIMES * nbytes:
                    self.kept.remove(written)
                    return self._take(written)
        return None

    def _take(self, written: _Written) -> Block:
        block = written.slab.allocate()
        self._taken[block.ref] = written
        return block

    def free(self, ref: int, now_s: float, *, keep: bool) -> int:
        """Take a block back. The owner id of its segment where that is to be let go of, too; 0 where it is kept, or
        where this is no block of these, or not any more."""
        with self._lock:
            written = self._taken.pop(ref, None)
            if written is None:
                return 0
            written.slab.free()
            if not (keep and written.may_be_kept):
                del self.segments[written.slab.owner]
                return written.slab.owner
            written.idle_since_s = now_s
            self.kept.append(written)
            return 0

    def expire(self, now_s: float) -> tuple[list[int], float | None]:
        """The owner ids of those that nobody has needed for KEEP_S, which are to be let go of; and in how many seconds
        there may be others, None for never."""
        with self._lock:
            idle = [each for each in self.kept if now_s - each.idle_since_s >= KEEP_S]
            del self.kept[: len(idle)]  # they are the first
            for each in idle:
                del self.segments[each.slab.owner]
            left_s = self.kept[0].idle_since_s + KEEP_S - now_s if self.kept else None
        return [each.slab.owner for each in idle], left_s
