"""A writer's oversize segments: each has one block, for a payload that no slab takes, and may be kept for a while for
reuse.

    added ─► taken ─► freed ─► given back, or kept ─► taken again, by a payload for the same readers ─► …
                                               └─► idle for KEEP_S ─► given back

Making an oversize segment takes longer than filling it: for 16 MiB the supervisor clears the pages (7 ms of CPU), the
writer takes a page fault at each of them (8 ms), and a reader does, too (3 ms). A kept segment behaves like a block of
a slab: it is free when its last reader is done with the block, and gets a new generation when it is taken again, so
that older references are stale. The methods may be called from any thread. The supervisor, to which segments are given
back, bounds all oversize segments together and says which may be kept.
"""

import threading
from dataclasses import dataclass

from shoal.shm.segment import Segment
from shoal.shm.slab import Block, WholeSlab

#: How long an unused segment is kept, in seconds (ours).
KEEP_S = 1.0
#: A payload is not put into a kept segment of more than this many times its size (ours).
_MOST_TIMES = 4


@dataclass(slots=True, eq=False)
class _Written:
    """One oversize segment. `idle_since_s` (monotonic) is when it was kept for reuse."""

    slab: WholeSlab
    readers: int
    may_be_kept: bool
    idle_since_s: float = 0.0


class WholeSlabs:
    """All oversize segments of one writer. `readers` is a number for the set of processes that have a segment
    mapped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Changed under the lock: reference → segment of blocks in use; and the kept segments, the longest idle first.
        self._taken: dict[int, _Written] = {}
        self.kept: list[_Written] = []
        #: Owner id → segment, in use or kept.
        self.segments: dict[int, _Written] = {}

    @property
    def taken_refs(self) -> list[int]:
        """References to all blocks in use."""
        return list(self._taken)

    def add(self, segment: Segment, readers: int, *, may_be_kept: bool) -> Block:
        """The writable block of a segment that has just been mapped; the block is in use until `free`."""
        written = _Written(WholeSlab(segment), readers, may_be_kept)
        self.segments[written.slab.owner] = written
        return self._take(written)

    def allocate(self, nbytes: int, readers: int) -> Block | None:
        """A kept block of at least `nbytes` bytes, mapped by these readers, with undefined contents, in use until
        `free`; None if there is none."""
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
        """Free a block. Returns the owner id of its segment if the segment is now to be given back to the
        supervisor; 0 if the segment is kept, or if the reference names no block in use. `now_s` is monotonic, in
        seconds."""
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
        """Forget segments that were unused for KEEP_S. Returns their owner ids, by which the segments are now to
        be given back to the supervisor, and the seconds until the next call (None: no call is needed)."""
        with self._lock:
            idle = [each for each in self.kept if now_s - each.idle_since_s >= KEEP_S]
            del self.kept[: len(idle)]
            for each in idle:
                del self.segments[each.slab.owner]
            left_s = self.kept[0].idle_since_s + KEEP_S - now_s if self.kept else None
        return [each.slab.owner for each in idle], left_s
