"""Segments: pieces of memory that one process writes and others read, passed between processes as descriptors; a
segment has no name.

The supervisor makes segments; every other process maps a descriptor it was sent. For memory that only our own code
writes, a segment is an unnamed file in /dev/shm, so that nothing is left behind wherever its maker is killed; if a
model's code may write, it is a memfd, sealed, because a /dev/shm file can be truncated under its readers (SIGBUS) and
cannot be sealed.
"""

import fcntl
import mmap
import os

from shoal.shm import layout
from shoal.shm.layout import Geometry, LayoutError

#: From Linux's fcntl.h; Python's fcntl has the other seals.
F_SEAL_FUTURE_WRITE = 0x10

_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)


class OutOfSharedMemoryError(Exception):
    """There is no room for a segment; the sentence names the size and the flag to change."""


def create(
    kind: int, owner: int, epoch: int, geometry: Geometry, *, sealed: bool, for_guest: bool = False, lazy: bool = False
) -> int:
    """A new segment's descriptor, its pages reserved and its header written. The caller owns the descriptor.

    `sealed` chooses a memfd that can neither shrink nor grow; one `for_guest` admits no further seal either, which a
    foreign process could otherwise set before the supervisor does. The pages of a `lazy` segment are reserved when its
    owner writes to them; those of any other now, so that lack of memory raises OutOfSharedMemoryError here instead of a
    SIGBUS later.
    """
    assert geometry.slab_nbytes <= layout.MAX_SLAB_BYTES, "a block reference has 20 bits for the unit"
    fd = _create_memfd() if sealed else _create_nameless()
    try:
        if lazy:
            os.ftruncate(fd, geometry.nbytes)
        else:
            os.posix_fallocate(fd, 0, geometry.nbytes)
        os.pwrite(fd, layout.pack_header(kind, owner, epoch, geometry), 0)
    except OSError as error:
        os.close(fd)
        raise OutOfSharedMemoryError(
            f"no shared memory for a {layout.KIND_NAMES[kind]} segment of {geometry.nbytes} bytes: {error.strerror}. "
            "Free memory, or lower --shm-client-slab-mib or --shm-worker-slab-mib"
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
    """A second descriptor of a segment's memory that cannot be mapped writable; the caller owns both."""
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

    @classmethod
    def attach(cls, fd: int, *, populate: bool = True) -> "Segment":
        """Map the process's own segment and close `fd`. Raises LayoutError if the memory is no segment of this layout.

        All pages are made present, since a first touch costs 7 to 40 times the copy that follows. Without `populate`
        the copy brings them in, which is cheaper for memory that is written once (13 against 48 ms for 100 MiB).
        """
        flags = mmap.MAP_SHARED | (_POPULATE if populate else 0)
        return cls(_map(fd, flags, mmap.PROT_READ | mmap.PROT_WRITE))


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
