"""shm/segment.py: memory without names, with seals, refused when damaged, given back when no view is left."""

import errno
import fcntl
import gc
import mmap
import os
import stat
import weakref
from collections.abc import Callable

import pytest

from shoal.shm import segment
from shoal.shm.layout import Geometry, LayoutError
from shoal.shm.segment import OutOfSharedMemoryError, Segment, SegmentView
from tests.named_segments import left_behind, named_segments
from tests.scarcity import files_of_at_most_a_page

GEOMETRY = Geometry(ring_capacity=16, slab_nbytes=8192)  # 16384 bytes in all
BOTH = pytest.mark.parametrize("sealed", [False, True], ids=["dev-shm", "memfd"])


def create(*, sealed: bool) -> int:
    return segment.create(3, 7, GEOMETRY, sealed=sealed)


@BOTH
def test_a_new_segment_has_its_header_and_all_its_pages(sealed: bool) -> None:
    fd = create(sealed=sealed)
    status = os.fstat(fd)
    assert status.st_size == 16384
    assert status.st_blocks * 512 == 16384
    assert os.pread(fd, 24, 0) == b"SHOAL\0\0\0" + bytes([2, 0, 0, 0, 3, 0, 0, 0]) + bytes([7, 0, 0, 0, 0, 0, 0, 0])
    os.close(fd)


@BOTH
def test_a_segment_never_has_a_name_and_is_not_inherited(sealed: bool) -> None:
    before = named_segments()
    fd = create(sealed=sealed)
    assert left_behind(before) == set()
    assert os.fstat(fd).st_nlink == 0
    assert os.get_inheritable(fd) is False
    where = os.readlink(f"/proc/self/fd/{fd}")
    # The kernel calls a file by its inode that was made without a name; one that has lost it, by what it was called.
    inode = os.fstat(fd).st_ino
    assert where == ("/memfd:shoal (deleted)" if sealed else f"/dev/shm/#{inode} (deleted)")
    os.close(fd)


def test_a_dev_shm_segment_is_for_its_user_only() -> None:
    fd = create(sealed=False)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    os.close(fd)


@pytest.mark.parametrize("nbytes", [0, 16383, 16385, 32768])
def test_a_sealed_segment_neither_shrinks_nor_grows(nbytes: int) -> None:
    fd = create(sealed=True)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, nbytes)
    assert os.fstat(fd).st_size == 16384
    os.close(fd)


def test_after_seal_writes_only_the_owner_writes() -> None:
    fd = create(sealed=True)
    owner = Segment.attach(os.dup(fd))
    segment.seal_writes(fd)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 8192)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 16384, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        Segment.attach(os.dup(fd))
    reopened = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(reopened, b"x", 8192)
    os.close(reopened)
    view = SegmentView.attach(fd)
    assert view.bytes[8192] == 0
    owner.bytes[8192] = 42
    assert view.bytes[8192] == 42


def test_after_seal_writes_no_seal_can_be_added() -> None:
    fd = create(sealed=True)
    segment.seal_writes(fd)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, 1033, 0x8)  # F_ADD_SEALS, F_SEAL_WRITE
    os.close(fd)


def test_a_dev_shm_segment_cannot_be_sealed() -> None:
    fd = create(sealed=False)
    with pytest.raises(PermissionError):
        segment.seal_writes(fd)
    os.close(fd)


@BOTH
def test_a_read_only_descriptor_shows_the_memory_and_cannot_write_it(sealed: bool) -> None:
    fd = create(sealed=sealed)
    reader = segment.read_only(fd)
    assert os.get_inheritable(reader) is False
    with pytest.raises(PermissionError):
        mmap.mmap(reader, 16384, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        os.pwrite(reader, b"x", 8192)
    assert caught.value.errno == errno.EBADF
    owner, view = Segment.attach(fd), SegmentView.attach(reader)
    owner.words[8] = 2**64 - 2
    assert view.words[8] == 2**64 - 2


def test_a_peers_mapping_is_read_only_in_python_too() -> None:
    fd = create(sealed=False)
    view = SegmentView.attach(segment.read_only(fd))
    with pytest.raises(TypeError, match="read-only"):
        view.words[8] = 1
    with pytest.raises(TypeError, match="read-only"):
        view.bytes[8192:8193] = b"x"
    assert os.pread(fd, 16384 - 64, 64) == bytes(16384 - 64)
    os.close(fd)


@BOTH
def test_a_limit_of_files_sizes_is_an_error_that_names_it_and_keeps_no_descriptor(
    sealed: bool, num_descriptors: Callable[[], int]
) -> None:
    """The error names no flags: they set the sizes of slabs, which may not be what is too large."""
    before, names = num_descriptors(), named_segments()
    with files_of_at_most_a_page(), pytest.raises(OutOfSharedMemoryError) as caught:
        create(sealed=sealed)
    assert str(caught.value) == (
        "no shared memory for a worker segment of 16384 bytes: File too large. "
        "Raise the limit of a file's size: LimitFSIZE= of the systemd unit, or ulimit -f"
    )
    assert num_descriptors() == before
    assert left_behind(names) == set()


@BOTH
def test_no_room_is_an_error_that_names_the_flags(sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OutOfSharedMemoryError) as caught:
        create(sealed=sealed)
    assert str(caught.value) == (
        "no shared memory for a worker segment of 16384 bytes: No space left on device. "
        "Free memory, or lower --shm-client-slab-mib or --shm-worker-slab-mib"
    )


def memfd(content: bytes) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


@pytest.mark.parametrize("attach", [Segment.attach, SegmentView.attach], ids=["Segment", "SegmentView"])
@pytest.mark.parametrize("nbytes", [0, 100, 4095, 4096, 4097, 4100, 16384])
def test_what_is_no_segment_is_refused_and_its_descriptor_closed(
    attach: Callable[[int], object], nbytes: int, num_descriptors: Callable[[], int]
) -> None:
    before = num_descriptors()
    with pytest.raises(LayoutError):
        attach(memfd(bytes(nbytes)))
    assert num_descriptors() == before


@pytest.mark.parametrize(("word", "value"), [(0, 1), (1, 9), (4, 2**63), (5, 0), (6, 2**63), (7, 4096)])
def test_a_damaged_header_is_refused(word: int, value: int) -> None:
    fd = create(sealed=False)
    os.pwrite(fd, value.to_bytes(8, "little"), word * 8)
    with pytest.raises(LayoutError):
        SegmentView.attach(fd)


def test_the_last_view_takes_the_mapping_along(num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    owner = Segment.attach(create(sealed=False))
    memory = weakref.ref(owner.bytes.obj)
    kept = owner.bytes[8192:8200]
    kept[:] = b"farewell"
    del owner
    gc.collect()
    assert bytes(kept) == b"farewell"
    assert memory() is not None
    del kept
    gc.collect()
    assert memory() is None
    assert num_descriptors() == before


def test_whether_dev_shm_has_room() -> None:
    assert segment.fits_dev_shm(0) is True
    assert segment.fits_dev_shm(2**62) is False
