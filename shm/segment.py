"""Segments: pieces of memory that one process writes and others read, passed between processes as descriptors; a
segment has no name.

The supervisor makes segments; every other process maps a descriptor that it was sent. A segment that only Shoal's own
code writes is an unnamed file in /dev/shm, so that nothing is left behind wherever its maker is killed. A segment that
a model's code may write is a sealed memfd, because a file in /dev/shm can be truncated while its readers have it mapped
(SIGBUS) and cannot be sealed.
"""

import errno
import fcntl
import mmap
import os

from shoal.open_files import RAISE_FILE_SIZE
from shoal.shm import layout
from shoal.shm.layout import Geometry, LayoutError

#: From Linux's fcntl.h; Python's fcntl has the other seals.
F_SEAL_FUTURE_WRITE = 0x10

#: Bytes of a slab that have pages from the beginning (ours: 64 small requests in flight). The slab's owner adds more
#: when they are needed, 256 KiB in 0.1 ms, so an idle front end takes 0.25 MiB and not 64. (Measured: the first 1,280
#: small requests over 64 connections have a p99 of 8.2 ms; with 1 MiB here, 8.6 ms. Medians of six starts of each, in
#: turns, between 6 and 10 ms.)
FIRST_SLAB_NBYTES = 1 << 18
_HAVE_SLABS = frozenset({layout.CLIENT, layout.WORKER, layout.BATCHER})
_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)
#: Linux 5.14; Python has no name for it yet.
_MADV_POPULATE_WRITE = 23


class OutOfSharedMemoryError(Exception):
    """There is no memory for a segment; the error's text names the size and the flag to change."""


def _can_populate() -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            return False
    return True


_CAN_POPULATE = _can_populate()


def first_nbytes(kind: int, geometry: Geometry) -> int:
    """The number of bytes, from a segment's start, that have pages from the beginning, as the slab's last page does.
    All bytes if the kernel cannot add pages later; all but the full ring behind a small one if no Slab adds pages to
    the segment."""
    if not _CAN_POPULATE:
        return geometry.nbytes
    if kind not in _HAVE_SLABS:
        return geometry.slab_end
    return geometry.slab_offset + min(geometry.slab_nbytes, FIRST_SLAB_NBYTES)


def _last_part(geometry: Geometry) -> tuple[int, int]:
    """Offset and size in bytes of the slab's last page, which is there from the beginning, beyond `first_nbytes`. The
    full ring behind a small one has no pages until its writer adds them (`make_ring_present`)."""
    return geometry.slab_end - layout.PAGE, layout.PAGE


def create(
    kind: int, owner: int, geometry: Geometry, *, sealed: bool, for_guest: bool = False, lazy: bool = False
) -> int:
    """A new segment's descriptor, its first pages reserved and its header written; to be closed by its receiver.

    `sealed` chooses a memfd that can neither shrink nor grow. With `for_guest` the memfd refuses further seals, too,
    which the guest could otherwise add. The pages of a `lazy` segment are reserved when its owner writes to them. The
    first pages of any other segment are reserved here, and lack of memory raises OutOfSharedMemoryError; the owner's
    Slab reserves further pages before it hands them out. So lack of memory is never a SIGBUS.
    """
    assert geometry.slab_nbytes <= layout.MAX_SLAB_BYTES, "a block reference has 20 bits for the unit"
    fd = _create_memfd() if sealed else _create_nameless()
    try:
        if lazy:
            os.ftruncate(fd, geometry.nbytes)
        else:
            os.posix_fallocate(fd, 0, first_nbytes(kind, geometry))
            os.posix_fallocate(fd, *_last_part(geometry))
            os.ftruncate(fd, geometry.nbytes)
        os.pwrite(fd, layout.pack_header(kind, owner, geometry), 0)
    except OSError as error:
        os.close(fd)
        lower = "Free memory, or lower --shm-client-slab-mib or --shm-worker-slab-mib"
        remedy = RAISE_FILE_SIZE if error.errno == errno.EFBIG else lower
        raise OutOfSharedMemoryError(
            f"no shared memory for a {layout.KIND_NAMES[kind]} segment of {geometry.nbytes} bytes: {error.strerror}. "
            f"{remedy}"
        ) from error
    if sealed:
        final = fcntl.F_SEAL_SEAL if for_guest else 0
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | final)
    return fd


def seal_writes(fd: int) -> None:
    """Forbid further writable mappings of a memfd, and writes to it; existing mappings keep working.

    Called by the supervisor once the owner has mapped its segment, before the segment is announced to others.
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def read_only(fd: int) -> int:
    """A second descriptor of a segment's memory that cannot be mapped writable; both are to be closed."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _create_memfd() -> int:
    return os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _create_nameless() -> int:
    """An unnamed file in /dev/shm; a memfd if /dev/shm is missing or not writable."""
    try:
        return os.open("/dev/shm", os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return _create_memfd()


def fits_dev_shm(nbytes: int) -> bool:
    """Whether /dev/shm has room for `nbytes` more (Docker's default is 64 MB in all)."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return False
    return status.f_bavail * status.f_frsize >= nbytes


def unreserved_nbytes(fd: int) -> int:
    """The bytes of a segment that have no pages yet."""
    status = os.fstat(fd)
    return max(0, status.st_size - 512 * status.st_blocks)


class Mapping:
    """A mapped segment: `header`, and its memory as `bytes` and as u64 `words`.

    A mapping is never unmapped explicitly, since an array that a model keeps would dangle; the memory is unmapped with
    its last view.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.bytes = memoryview(memory)
        self.words = self.bytes.cast("Q")
        self.header = layout.read_header(self.bytes)


class Segment(Mapping):
    """The writable mapping of a segment by its owner."""

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__(memory)
        self._memory = memory
        #: The number of bytes from the start whose pages are present, so that they may be written to; the slab's last
        #: page may be written to, too. Changed by make_present.
        self.present_nbytes = len(memory)

    @classmethod
    def attach(cls, fd: int, *, populate: bool = True) -> "Segment":
        """Map the process's own segment and close `fd`. Raises LayoutError if the memory is no segment of this layout.

        Pages are made present before they are written to, since the page fault at a first write costs 7 to 40 times as
        much as the copy that follows: the first pages here, others by `make_present`. Without `populate`, the copy
        itself brings the pages in, which is cheaper for memory that is written once (13 against 48 ms for 100 MiB).
        """
        flags = mmap.MAP_SHARED | (0 if _CAN_POPULATE or not populate else _POPULATE)
        segment = cls(_map(fd, flags, mmap.PROT_READ | mmap.PROT_WRITE))
        if populate and _CAN_POPULATE:
            header = segment.header
            segment.present_nbytes = 0
            first = first_nbytes(header.kind, header.geometry)
            if not (segment._populate(*_last_part(header.geometry)) and segment.make_present(first)):
                raise OutOfSharedMemoryError(
                    f"no memory for the first pages of a segment of {len(segment.bytes)} bytes"
                )
        return segment

    def make_present(self, nbytes: int) -> bool:
        """Make the pages of the first `nbytes` bytes present, which takes 0.5 ms for each MiB. False if there is no
        memory for them."""
        if nbytes > self.present_nbytes:
            if not self._populate(self.present_nbytes, nbytes - self.present_nbytes):
                return False
            self.present_nbytes = nbytes
        return True

    def make_ring_present(self) -> bool:
        """Make the pages of the full ring present, which takes 2 ms for a client's segment and 0.3 ms for a link. False
        if there is no memory for them."""
        if not _CAN_POPULATE:
            return True  # all pages have been there from the beginning
        start = self.header.geometry.slab_end
        return self._populate(start, len(self.bytes) - start)

    def _populate(self, start: int, nbytes: int) -> bool:
        whole = start // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self._memory.madvise(_MADV_POPULATE_WRITE, whole, start + nbytes - whole)
        except OSError:
            return False
        return True


class SegmentView(Mapping):
    """The read-only mapping of a segment by a peer of its owner."""

    @classmethod
    def attach(cls, fd: int) -> "SegmentView":
        """Map a peer's segment read-only and close `fd`. Raises LayoutError if the memory is no segment."""
        return cls(_map(fd, mmap.MAP_SHARED, mmap.PROT_READ))


def _map(fd: int, flags: int, protection: int) -> mmap.mmap:
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes == 0 or nbytes % layout.PAGE:
            raise LayoutError(f"a segment of {nbytes} bytes is not a whole number of pages")
        return mmap.mmap(fd, nbytes, flags=flags, prot=protection)
    finally:
        os.close(fd)
