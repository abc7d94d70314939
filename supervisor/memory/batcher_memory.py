"""The segments that the batcher writes beside its links: its own memory, and the table of counters. Runs in the
supervisor.

    its memory    headers of ensembles' steps and responses, and cached answers: made at the server's start where there
                  is a cache, else with the first ensemble; anew for each batcher
    the counters  made for the first batcher, written on by each successor
"""

import os

from shoal.messages.shared import SegmentAnnounced
from shoal.messages.to_batcher import BatcherMemoryMade
from shoal.shm import counters, layout, segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.memory.participant import create_segment
from shoal.supervisor.processes.members import Member


class BatcherMemory:
    """The segment of the batcher's memory, which clients and workers read; none until `make`."""

    def __init__(self) -> None:
        # Changed by make.
        #: The owner id of the segment; 0 before `make`.
        self.owner = 0
        self._read_only_fds: dict[int, int] = {}  # changed also by close: holds dead batchers' segments, too

    def make(self, batcher: Member, owner: int, geometry: Geometry, *, lazy: bool) -> None:
        """Make the segment and send it to a batcher; that of a dead batcher stays until `close`. A `lazy` segment
        gets its pages as it fills; it is a memfd, since /dev/shm may be full by then. Raises OutOfSharedMemoryError."""
        fd = create_segment(layout.BATCHER, owner, geometry, sealed=True, lazy=lazy)
        try:
            self._read_only_fds[owner] = segment.read_only(fd)
            self.owner = owner
            batcher.send(BatcherMemoryMade(fd))
        finally:
            os.close(fd)

    def __contains__(self, owner: int) -> bool:
        return owner in self._read_only_fds

    def find(self, owner: int) -> int | None:
        """A read-only descriptor of the segment with this owner id, even a dead batcher's; None where it is closed."""
        return self._read_only_fds.get(owner)

    def close(self, owner: int) -> None:
        """Close a dead batcher's segment: all clients have read the answers that lie there."""
        os.close(self._read_only_fds.pop(owner))

    @property
    def message(self) -> SegmentAnnounced:
        """The message that announces the segment to a front end."""
        return SegmentAnnounced(self.owner, self._read_only_fds[self.owner])


class CounterMemory:
    """The segment of the table of counters, which front ends, guests and the supervisor read; none until `make`.

    Memory for a row is reserved before a model version gets that row: a table for all rows takes 4 MiB.
    """

    def __init__(self) -> None:
        # Changed by make and reserve, and by the first read.
        #: The owner id of the segment; 0 before `make`.
        self.owner = 0
        self.fd = -1
        self._rows = {counters.MAX_ROWS}  # rows in use; row MAX_ROWS has the response cache's figures
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
        """Reserve memory for a row that the batcher may write from then on; before `make`, the row is only noted, and
        `make` reserves its memory.
        Raises OutOfSharedMemoryError."""
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
