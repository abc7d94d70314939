"""Clients' own shared memory in /dev/shm, registered by Triton's system shared memory extension: opened by name, copied
in and out.

Regions are not segments. A client owns the shared memory object, and may write to it and truncate it at any time. So a
region is never mapped: a process that touches truncated memory is killed (SIGBUS), while a read through a descriptor
returns too few bytes, which is an error of that client's request alone. A read makes a copy, too, so that a model gets
the bytes that were checked. The supervisor opens regions and sends the descriptors to front ends. Copying 576 KiB takes
43 µs by pread, 24 by mapping.
"""

import os
import re
import stat

# The function with which multiprocessing.shared_memory opens objects. That module itself would map the objects and,
# before Python 3.13, remove them at the end of its process. The package posix_ipc has no wheels for new versions of
# Python, for which it needs a compiler.
from _posixshmem import shm_open  # pyright: ignore[reportMissingImports]
from dataclasses import dataclass

from shoal.errors import InternalError, InvalidArgumentError

#: Names of objects in /dev/shm that a client may register: no directories, no semaphores (ours).
_OBJECT = re.compile(r"(?!sem\.|\.{1,2}$)[A-Za-z0-9_.:@+=,~-]{1,255}")
#: The prefix of Triton's own objects in /dev/shm; Triton refuses regions with such names.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
_MAX_UINT64 = 2**64 - 1
#: Most characters of a client's text in an error: the longest name of an object, with its slash.
_MOST_SHOWN = 256


class ClientRegion:
    """A registered part of a client's shared memory object: `byte_size` bytes from `offset` on. Owns the descriptor
    `fd`, which is closed with the last reference to the region."""

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
        """The part of the region for one tensor: `nbytes` bytes, `offset` bytes after the region's start. Raises
        InvalidArgumentError if the part reaches beyond the region."""
        check_bounds(self.name, self.byte_size, offset, nbytes)
        return RegionSlice(self, self.offset + offset, nbytes)


def check_bounds(name: str, byte_size: int, offset: int, nbytes: int) -> None:
    """Raise InvalidArgumentError, with Triton's sentences, if a part reaches beyond a region of `byte_size` bytes."""
    if offset >= byte_size:
        raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
    if offset + nbytes > _MAX_UINT64:
        raise InvalidArgumentError(
            f"Integer overflow detected: byte_size ({nbytes}) + offset ({offset}) exceeds maximum value "
            f"({_MAX_UINT64}) for region '{name}'"
        )
    if offset + nbytes > byte_size:
        raise _too_short(name)


def _too_short(name: str) -> InvalidArgumentError:
    """The error for an access beyond a region's end."""
    return InvalidArgumentError(f"Invalid offset + byte size for shared memory region: '{name}'")


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """The bytes of a region where a request's tensor lies, or where a response's tensor is to be written."""

    region: ClientRegion
    offset: int  # bytes from the start of the object, not of the region
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    def read_into(self, memory: memoryview) -> None:
        """Copy the tensor into `memory`, which has `nbytes` bytes and is not kept. Raises InvalidArgumentError if
        the object has been truncated."""
        done = 0
        while done < self.nbytes:
            count = os.preadv(self.region.fd, [memory[done:]], self.offset + done)
            if not count:
                raise _too_short(self.region.name)
            done += count

    def __bytes__(self) -> bytes:
        """A copy of the tensor's bytes. Raises InvalidArgumentError if the object has been truncated."""
        data = os.pread(self.region.fd, self.nbytes, self.offset)
        if len(data) < self.nbytes:
            raise _too_short(self.region.name)
        return data

    def write(self, data: memoryview) -> None:
        """Copy `data`, at most `nbytes` bytes, into the region. Raises InvalidArgumentError if the object has been
        truncated, InternalError if /dev/shm is full."""
        fd, done = self.region.fd, 0
        if os.fstat(fd).st_size < self.offset + len(data):  # a write beyond the end would extend the object
            raise _too_short(self.region.name)
        try:
            while done < len(data):
                done += os.pwrite(fd, data[done:], self.offset + done)
        except OSError as error:  # /dev/shm is full: the object's pages have no memory before they are first written
            raise InternalError(
                f"unable to write to shared memory region '{self.region.name}': {error.strerror}"
            ) from None


def open_region(name: str, key: str, offset: int, byte_size: int) -> ClientRegion:
    """Open the object that `key` names and check that the region, in bytes, lies within the object. The caller owns
    the region.

    Raises InvalidArgumentError for a key that is not allowed and for wrong bounds, InternalError if there is no such
    object; the sentences are Triton's.
    """
    object_name = key.lstrip("/")  # as shm_open does
    if object_name.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{_shown(name)}' with key '{_shown(key)}' as the key contains the "
            "reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )
    if not _OBJECT.fullmatch(object_name):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{_shown(name)}' - invalid shm key '{_shown(key)}'"
        )
    try:
        fd = shm_open(f"/{object_name}", os.O_RDWR, mode=0o600)
    except OSError:
        raise InternalError(f"Unable to open shared memory region: '{_shown(key)}'") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or byte_size < 1 or offset + byte_size > status.st_size:
        os.close(fd)
        raise InvalidArgumentError(f"failed to register shared memory region '{_shown(name)}': invalid args")
    return ClientRegion(name, key, offset, byte_size, fd)


def _shown(text: str) -> str:
    """A client's name or key for an error message: whole if it may be the name of an object, else its beginning."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:40]}…"
