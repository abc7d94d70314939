"""A worker's progress as the supervisor sees it, without asking: words of its segment and of the batcher's ring to it.

Read-only. The worker's words stand in memory that a model's code may write; they decide about that worker alone.
"""

import mmap
import os

from shoal.shm.layout import (
    BATCH_ITEM,
    BUSY_SINCE_WORD,
    HEAD_WORD,
    PAGE,
    PROGRESS_WORD,
    RECORD_BYTES,
    RING_OFFSET,
    TAIL_WORD,
    WORD,
)
from shoal.shm.segment import SegmentView


class Progress:
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
    def has_completed(self) -> bool:
        """Whether a batch was completed since the worker became ready."""
        return self.number > (1 if self.busy_since_ns else 0)

    @property
    def is_waited_for(self) -> bool:
        """Whether a batch lies in the ring that the worker has not looked at; memory given back may, for long."""
        head, tail = self._words[HEAD_WORD], self._link_words[TAIL_WORD]
        unread = range(max(head, tail - self._capacity), tail)
        return any(self._kind(position) == BATCH_ITEM for position in unread)

    def _kind(self, position: int) -> int:
        return self._link_words[(RING_OFFSET + position % self._capacity * RECORD_BYTES) // WORD]
