"""Memory of the batcher's own: headers of ensembles' steps and responses, answers that are cached. Made at the start
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
    """A segment that the batcher writes, and clients and workers read; none until it is made."""

    def __init__(self) -> None:
        # Changed by make.
        #: The owner id of the segment; 0: there is none.
        self.owner = 0
        self._read_only_fds: dict[int, int] = {}  # and by close: of dead batchers' segments, too

    def make(self, batcher: Member, owner: int, geometry: Geometry, *, lazy: bool) -> None:
        """Give it to a batcher; that of a dead one stays until `close`. What is `lazy` is taken as it fills: from a
        memfd, since /dev/shm may be full by then. Raises OutOfSharedMemoryError."""
        fd = create_segment(layout.BATCHER, owner, geometry, sealed=lazy, lazy=lazy)
        try:
            self._read_only_fds[owner] = segment.read_only(fd)
            self.owner = owner
            batcher.send(BatcherMemoryMade(fd))
        finally:
            os.close(fd)

    def __contains__(self, owner: int) -> bool:
        return owner in self._read_only_fds

    def find(self, owner: int) -> int | None:
        """A descriptor of the segment that has this id, a dead batcher's too, while it can be read."""
        return self._read_only_fds.get(owner)

    def close(self, owner: int) -> None:
        """Free a dead batcher's memory: all clients have read what lies there."""
        os.close(self._read_only_fds.pop(owner))

    @property
    def message(self) -> SegmentAnnounced:
        """What front ends are sent of it."""
        return SegmentAnnounced(self.owner, self._read_only_fds[self.owner])
