"""Clients' own memory in /dev/shm, of Triton's system shared memory extension: opened by name, copied in and out.

Another world than segments. A client owns the object, and may write it and cut it short whenever it likes. So it is
never mapped: to touch what is gone kills a process (SIGBUS), while a read through a descriptor comes up short, which is
an error of that client's alone. It is a snapshot, too: what was checked is what a model gets. The supervisor opens
regions, front ends are handed the descriptors. A copy of 576 KiB takes 43 µs by pread, 24 from a mapping.
"""

import os
import re
import stat
from dataclasses import dataclass

from shoal.errors import InternalError, InvalidArgumentError

#: One name in /dev/shm, which no path can be made of, nor a semaphore's, which lie there, too (ours: an allow-list).
_OBJECT = re.compile(r"(?!sem\.|\.{1,2}$)[A-Za-z0-9_.:@+=,~-]{1,255}")
#: What Triton calls memory of its own.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
_MAX_UINT64 = 2**64 - 1


class ClientRegion:
    """A registered part of an object. The descriptor is its own: it is closed when no table and no request has it."""

    __slots__ = ("byte_size", "fd", "key", "name", "offset")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, fd: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)

    def slice(self, offset: int, nbytes: int) -> "RegionSlice":
        """A part of the region, for one tensor. Raises InvalidArgumentError with Triton's sentences."""
        if offset >= self.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{self.name}'")
        if offset + nbytes > _MAX_UINT64:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({nbytes}) + offset ({offset}) exceeds maximum value "
                f"({_MAX_UINT64}) for region '{self.name}'"
            )
        if offset + nbytes > self.byte_size:
            raise self.too_short()
        return RegionSlice(self, self.offset + offset, nbytes)

    def too_short(self) -> InvalidArgumentError:
        """The refusal of what lies behind the region's end."""
        return InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{self.name}'")


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """Where a tensor lies, or shall lie."""

    region: ClientRegion
    offset: int  # in the object
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    def read_into(self, memory: memoryview) -> None:
        """Copy it into `memory`, which has as many bytes. Raises InvalidArgumentError where it is cut short by now."""
        done = 0
        while done < self.nbytes:
            count = os.preadv(self.region.fd, [memory[done:]], self.offset + done)
            if not count:
                raise self.region.too_short()
            done += count

    def __bytes__(self) -> bytes:
        """As `read_into`, for a short one: into memory of its own."""
        data = os.pread(self.region.fd, self.nbytes, self.offset)
        if len(data) < self.nbytes:
            raise self.region.too_short()
        return data

    def write(self, data: memoryview) -> None:
        """Put `data` there, which fits. Raises ShoalError where it is cut short by now, or has no memory."""
        fd, done = self.region.fd, 0
        if os.fstat(fd).st_size < self.offset + len(data):  # a write would make it longer again
            raise self.region.too_short()
        try:
            while done < len(data):
                done += os.pwrite(fd, data[done:], self.offset + done)
        except OSError as error:  # /dev/shm is full, and pages that nobody has touched are not there yet
            raise InternalError(
                f"unable to write to shared memory region '{self.region.name}': {error.strerror}"
            ) from None


def open_region(name: str, key: str, offset: int, byte_size: int) -> ClientRegion:
    """A region of the object that `key` names. Raises ShoalErrors with Triton's sentences."""
    object_name = key.lstrip("/")  # as shm_open does
    if object_name.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )
    if not _OBJECT.fullmatch(object_name):
        raise InvalidArgumentError(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
    import posix_ipc  # here: what workers import of this needs none of it

    try:
        fd = posix_ipc.SharedMemory(f"/{object_name}").fd
    except (posix_ipc.Error, OSError, ValueError):
        raise InternalError(f"Unable to open shared memory region: '{key}'") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or byte_size < 1 or offset + byte_size > status.st_size:
        os.close(fd)
        raise InvalidArgumentError(f"failed to register shared memory region '{name}': invalid args")
    return ClientRegion(name, key, offset, byte_size, fd)
