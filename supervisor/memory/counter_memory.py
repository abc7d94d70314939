"""The segment of the table of counters: made for the first batcher, written on by each successor. Runs in the
supervisor.
"""

import os

from shoal.shm import counters, layout, segment
from shoal.supervisor.memory.participant import create_segment


class CounterMemory:
    """The segment that the batcher writes, and that front ends, guests and the supervisor read; none until `make`."""

    def __init__(self) -> None:
        # Changed by make, and by the first read.
        #: The owner id of the segment; 0 before `make`.
        self.owner = 0
        self.fd = -1
        self._table: counters.CounterTableView | None = None

    def make(self, owner: int, *, has_windows: bool) -> int:
        """Make the segment; returns its size in bytes. Raises OutOfSharedMemoryError."""
        geometry = counters.GEOMETRY_WITH_WINDOWS if has_windows else counters.GEOMETRY
        self.fd = create_segment(layout.COUNTERS, owner, geometry, sealed=False)
        self.owner = owner
        return geometry.nbytes

    def read(self) -> counters.CounterTableView:
        """A view of the batcher's counters; the first call maps the segment."""
        if self._table is None:
            self._table = counters.CounterTableView(segment.SegmentView.attach(os.dup(self.fd)))
        return self._table
