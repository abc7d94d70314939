"""The batcher's own segment: headers of ensembles' steps and responses, and cached answers. Made at the server's start
where there is a cache, else with the first ensemble; anew for each batcher. Runs in the supervisor.
"""

import os

from shoal.messages.shared import SegmentAnnounced
from shoal.messages.to_batcher import BatcherMemoryMade
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.supervisor.memory.participant import create_segment
from shoal.supervisor.processes.members import Member


class BatcherMemory:
    """The segment that the batcher writes, and that clients and workers read; none until `make`."""

    def __init__(self) -> None:
        # Changed by make.
        #: The owner id of the segment; 0 before `make`.
        self.owner = 0
        self._read_only_fds: dict[int, int] = {}  # changed also by close: holds dead batchers' segments, too

    def make(self, batcher: Member, owner: int, geometry: Geometry, *, lazy: bool) -> None:
        """Make the segment and send it to a batcher; that of a dead batcher stays until `close`. A `lazy` segment is a
        memfd, all pages of which are taken as it fills: /dev/shm may be full by then. Raises OutOfSharedMemoryError."""
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
