"""Memory on a GPU that processes share: clients' own, registered by Triton's CUDA shared memory extension, and workers'
pools. Named and bounded here, never opened.

A region is a handle of CUDA's inter-process communication (cudaIpcMemHandle_t) and a size. The supervisor numbers the
region, front ends check offsets and sizes against its size, and a request's header carries the place of a tensor to the
worker that executes the request, the only process that opens the handle (workers/cuda_regions.py). So no front end
needs a CUDA context, and a bad handle is noticed only with the first request.

    place       registration number, 8 bytes; number of the GPU, 4 bytes; handle, 64 bytes; little-endian

A tensor that a worker leaves on its GPU for another model lies in the worker's pool (workers/gpu_pool.py); the block
has a `Placed` (shoal/request.py) instead of the tensor's bytes. A pool has no registration: its number is made from the
block's owner id.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.request import HANDLE_NBYTES, Placed
from shoal.shm.client_regions import check_bounds

_PLACE = struct.Struct(f"<QI{HANDLE_NBYTES}s")
PLACE_NBYTES = _PLACE.size
#: Added to a segment's owner id for the number of a pool, so that no registration has the same number.
_POOL = 1 << 63


class CudaPlace(NamedTuple):
    """The region in which a tensor lies, as a request's header names the region."""

    number: int  # of the registration; no later registration has the same
    device_id: int  # the client's and the server's number of the GPU
    handle: bytes

    def pack(self) -> bytes:
        """The place as PLACE_NBYTES bytes."""
        return _PLACE.pack(*self)


def unpack_place(packed: bytes) -> CudaPlace:
    """The place in a header. Raises ValueError if `packed` has another size."""
    if len(packed) != PLACE_NBYTES:
        raise ValueError(f"a place in CUDA shared memory of {len(packed)} bytes")
    return CudaPlace(*_PLACE.unpack(packed))


def place_in_pool(placed: Placed, owner: int) -> bytes:
    """The packed CudaPlace of the pool of a tensor that a block of the segment `owner` names."""
    return CudaPlace(pool_number(owner), placed.device_id, placed.handle).pack()


def pool_number(owner: int) -> int:
    """The number of the pool that blocks of the segment `owner` name; it is no registration's number."""
    return _POOL | owner


def is_pool(number: int) -> bool:
    """Whether a CudaPlace's number is that of a worker's pool."""
    return number >= _POOL


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """A registered region: `byte_size` bytes of memory on a GPU, which stay the client's."""

    name: str
    number: int
    device_id: int
    handle: bytes
    byte_size: int

    def slice(self, offset: int, nbytes: int) -> "CudaSlice":
        """The part of the region for one tensor: `nbytes` bytes, `offset` bytes after the region's start. Raises
        InvalidArgumentError if the part reaches beyond the region."""
        check_bounds(self.name, self.byte_size, offset, nbytes)
        return CudaSlice(self.name, CudaPlace(self.number, self.device_id, self.handle).pack(), offset, nbytes)


@dataclass(frozen=True, slots=True)
class CudaSlice:
    """The bytes of a region where a request's tensor lies, or where a response's tensor is to be written."""

    region: str  # its name
    place: bytes
    offset: int  # bytes from the region's start
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes


def check_handle(handle: bytes) -> None:
    """Raise InvalidArgumentError, in Triton's words, for bytes that are no cudaIpcMemHandle_t."""
    if len(handle) != HANDLE_NBYTES:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
