"""A worker's progress as the supervisor sees it, without asking: words of its segment and of the batcher's ring to it.

Read-only. The worker's words stand in memory that a model's code may write; they decide about that worker alone.
"""

import mmap
import os
import weakref
from pathlib import Path

from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_FOR_WORD,
    BUSY_SINCE_WORD,
    HEAD_WORD,
    MOVED_WORD,
    PAGE,
    PROGRESS_WORD,
    RECORD_BYTES,
    RING_OFFSET,
    TAIL_WORD,
    TAKEN_WORD,
    WORD,
)
from shoal.shm.segment import SegmentView

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerProgress:
    """The view of one worker."""

    def __init__(self, segment_fd: int, link_fd: int) -> None:
        """Map a worker's first page and the link in which the batcher writes to it; the descriptors stay open."""
        page = mmap.mmap(segment_fd, PAGE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._words = memoryview(page).cast("Q")
        link = SegmentView.attach(os.dup(link_fd))
        self._link_words = link.words
        self._capacity = link.header.ring_capacity

    @property
    def number(self) -> int:
        """Of the batch begun last; the first is 1."""
        return self._words[PROGRESS_WORD]

    @property
    def busy_since_ns(self) -> int:
        """When the batch being executed began; 0 where none is."""
        return self._words[BUSY_SINCE_WORD]

    @property
    def moved_ns(self) -> int:
        """When the batch being executed began, last sent a response or last waited for a client; 0 where none is."""
        busy_since_ns = self.busy_since_ns
        return busy_since_ns and max(busy_since_ns, self._words[MOVED_WORD])

    @property
    def busy_for_ns(self) -> int:
        """How long all batches took that have ended since the worker started."""
        return self._words[BUSY_FOR_WORD]

    def busy_ns(self, now_ns: int) -> int:
        """The same, the batch being executed included; may go back by a batch that ends at this moment."""
        since_ns = self.busy_since_ns
        return self.busy_for_ns + (max(0, now_ns - since_ns) if since_ns else 0)

    @property
    def num_completed(self) -> int:
        """Batches that have ended since the worker became ready."""
        return max(0, self.number - (1 if self.busy_since_ns else 0))

    @property
    def has_completed(self) -> bool:
        """Whether a batch was completed since the worker became ready."""
        return self.num_completed > 0

    @property
    def num_requests(self) -> int:
        """Requests taken since the worker became ready, those that lie before it included."""
        return self._words[TAKEN_WORD]

    @property
    def is_waited_for(self) -> bool:
        """Whether a batch lies in the ring that the worker has not looked at; memory given back may, for long."""
        head, tail = self._words[HEAD_WORD], self._link_words[TAIL_WORD]
        unread = range(max(head, tail - self._capacity), tail)
        return any(self._kind(position) == BATCH_ITEM for position in unread)

    def _kind(self, position: int) -> int:
        return self._link_words[(RING_OFFSET + position % self._capacity * RECORD_BYTES) // WORD]


class BusyShare:
    """How much of its time between two looks a worker spent on batches, from 0 to 1."""

    def __init__(self) -> None:
        # Changed by each look.
        self.share = 0.0
        self._seen: weakref.ref[WorkerProgress] | None = None  # weak: a dead worker's memory must not stay for it
        self._then_ns = self._was_ns = 0

    def look(self, now_ns: int, progress: WorkerProgress | None) -> None:
        """Another look; a worker that is not up, or was not the one looked at last, has no share yet."""
        busy_ns = 0 if progress is None else progress.busy_ns(now_ns)
        if progress is None or self._seen is None or progress is not self._seen():
            self.share = 0.0
        else:
            self.share = min(1.0, max(0.0, (busy_ns - self._was_ns) / max(1, now_ns - self._then_ns)))
        self._seen = None if progress is None else weakref.ref(progress)
        self._then_ns, self._was_ns = now_ns, busy_ns


def rss_bytes(pid: int) -> int:
    """Memory of a process, what it shares with others included; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
