"""The segment of the table of counters: made for the first batcher, written on by each successor. Runs in the
supervisor.

Memory for a row is reserved before a model version gets that row: a table for all rows takes 4 MiB.
"""

import os

from shoal.shm import counters, layout, segment
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.memory.participant import create_segment


class CounterMemory:
    """The segment that the batcher writes, and that front ends, guests and the supervisor read; none until `make`."""

    def __init__(self) -> None:
        # Changed by make and reserve, and by the first read.
        #: The owner id of the segment; 0 before `make`.
        self.owner = 0
        self.fd = -1
        self._rows = {counters.MAX_ROWS}  # those in use; the last one has the figures of the response cache
        self._table: counters.CounterTableView | None = None

    def make(self, owner: int, *, has_windows: bool) -> int:
        """Make the segment; returns its size in bytes. Raises OutOfSharedMemoryError."""
        geometry = counters.GEOMETRY_WITH_WINDOWS if has_windows else counters.GEOMETRY
        self.fd = create_segment(layout.COUNTERS, owner, geometry, sealed=False, lazy=not has_windows)
        for row in self._rows:
            self.reserve(row)
        self.owner = owner
        return geometry.nbytes

    def reserve(self, row: int) -> None:
        """Reserve memory for a row, which the batcher may then write; before `make`, as it is made. Raises
        OutOfSharedMemoryError."""
        self._rows.add(row)
        if self.fd < 0:
            return
        try:
            os.posix_fallocate(self.fd, *counters.reserved_part(row))
        except OSError as error:
            raise OutOfSharedMemoryError(f"no shared memory for a model's statistics: {error.strerror}") from error

    def read(self) -> counters.CounterTableView:
        """A view of the batcher's counters; the first call maps the segment."""
        if self._table is None:
            self._table = counters.CounterTableView(segment.SegmentView.attach(os.dup(self.fd)))
        return self._table
