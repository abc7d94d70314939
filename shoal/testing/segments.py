"""Segments for a server in one process: as large as could ever be needed, since unused pages take no memory."""

import mmap
from contextlib import suppress

from shoal.shm import layout
from shoal.shm.layout import Geometry
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.shares import RECORDS_PER_REQUEST

#: The most requests in flight per model.
MAX_IN_FLIGHT = 4096
#: Records of a ring.
RING_CAPACITY = RECORDS_PER_REQUEST * MAX_IN_FLIGHT
#: Bytes of a slab. A request may fill one, a result a quarter of one.
SLAB_NBYTES = 2 << 30
#: MAP_NORESERVE, which Python has from 3.13 on: the kernel does not count unused pages as taken.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


def create_segment(
    kind: int, owner: int, slab_nbytes: int, ring_capacity: int = RING_CAPACITY
) -> tuple[Segment, SegmentView]:
    """A segment as its owner and as other processes map it. It is private memory, freed with the last view."""
    geometry = Geometry(ring_capacity, slab_nbytes)
    memory = mmap.mmap(-1, geometry.nbytes, flags=_FLAGS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # with huge pages, the first write to a page would take 2 MiB
    header = layout.pack_header(kind, owner, geometry)
    memory[: len(header)] = header
    return Segment(memory), SegmentView(memory)
