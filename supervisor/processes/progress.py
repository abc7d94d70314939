"""A worker's progress as the supervisor reads it: words of the worker's segment and of the batcher's ring to it.

Read-only. The worker's words stand in memory that a model's code may write; they concern that worker alone.
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
    """A view of one worker's progress words and ring."""

    def __init__(self, segment_fd: int, link_fd: int) -> None:
        """Map a worker's first page and the batcher's link to it; both descriptors stay the caller's."""
        page = mmap.mmap(segment_fd, PAGE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._words = memoryview(page).cast("Q")
        link = SegmentView.attach(os.dup(link_fd))
        self._link_words = link.words
        self._capacity = link.header.ring_capacity

    @property
    def number(self) -> int:
        """The number of the batch begun last; the first is 1."""
        return self._words[PROGRESS_WORD]

    @property
    def busy_since_ns(self) -> int:
        """The time at which the present batch began; 0 where none is executed."""
        return self._words[BUSY_SINCE_WORD]

    @property
    def moved_ns(self) -> int:
        """The time at which the present batch began, last sent a response or waited for a client; 0 without one."""
        busy_since_ns = self.busy_since_ns
        return busy_since_ns and max(busy_since_ns, self._words[MOVED_WORD])

    @property
    def busy_for_ns(self) -> int:
        """The total duration of all batches that have ended since the worker started."""
        return self._words[BUSY_FOR_WORD]

    def busy_ns(self, now_ns: int) -> int:
        """The total duration of all batches, the present one included; may go back as a batch ends."""
        since_ns = self.busy_since_ns
        return self.busy_for_ns + (max(0, now_ns - since_ns) if since_ns else 0)

    @property
    def num_completed(self) -> int:
        """The number of batches that have ended since the worker became ready."""
        return max(0, self.number - (1 if self.busy_since_ns else 0))

    @property
    def num_requests(self) -> int:
        """The number of requests taken since the worker became ready, those in the present batch included."""
        return self._words[TAKEN_WORD]

    @property
    def is_waited_for(self) -> bool:
        """Whether a batch lies in the ring that the worker has not read; a FREE may lie there for long."""
        head, tail = self._words[HEAD_WORD], self._link_words[TAIL_WORD]
        unread = range(max(head, tail - self._capacity), tail)
        return any(self._kind(position) == BATCH_ITEM for position in unread)

    def _kind(self, position: int) -> int:
        return self._link_words[(RING_OFFSET + position % self._capacity * RECORD_BYTES) // WORD]


class BusyShare:
    """The share of the time between two looks that a worker spent on batches, from 0 to 1."""

    def __init__(self) -> None:
        # The share between the last two looks. Changed by each look.
        self.share = 0.0
        # The progress looked at last. The reference is weak, so that a dead worker's memory is unmapped.
        self._seen: weakref.ref[WorkerProgress] | None = None
        self._then_ns = self._was_ns = 0

    def look(self, now_ns: int, progress: WorkerProgress | None) -> None:
        """Update the share; a worker that is not up, or was not the one looked at last, has no share yet."""
        busy_ns = 0 if progress is None else progress.busy_ns(now_ns)
        if progress is None or self._seen is None or progress is not self._seen():
            self.share = 0.0
        else:
            self.share = min(1.0, max(0.0, (busy_ns - self._was_ns) / max(1, now_ns - self._then_ns)))
        self._seen = None if progress is None else weakref.ref(progress)
        self._then_ns, self._was_ns = now_ns, busy_ns


def rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes, shared memory included; 0 where the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
