"""Memory of the batcher's own: headers of ensembles' steps and responses, answers that are cached. Made at the start
where there is a cache, else with the first ensemble; anew for each batcher. Runs in the supervisor.
"""

import os
from collections.abc import Sequence

from shoal.control import Message
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.supervisor.members import Member
from shoal.supervisor.participant import create_segment


class BatcherMemory:
    """A segment that the batcher writes, and clients and workers read; none until it is made."""

    def __init__(self) -> None:
        # Changed by make.
        #: The owner id of the segment; 0: there is none.
        self.owner = 0
        self.read_only_fd = -1

    def make(self, batcher: Member, owner: int, geometry: Geometry, *, lazy: bool) -> None:
        """Give it to a batcher; who read that of another one must have been told that it is gone. What is `lazy` is
        taken as it fills: from a memfd, since /dev/shm may be full by then. Raises OutOfSharedMemoryError."""
        fd = create_segment(layout.BATCHER, owner, geometry, sealed=lazy, lazy=lazy)
        try:
            read_only_fd = segment.read_only(fd)
            if self.owner:
                os.close(self.read_only_fd)
            self.owner, self.read_only_fd = owner, read_only_fd
            batcher.send({"op": "memory"}, [fd])
        finally:
            os.close(fd)

    @property
    def message(self) -> tuple[Message, Sequence[int]]:
        """What clients hear of it."""
        return {"op": "segment", "owner": self.owner}, [self.read_only_fd]
