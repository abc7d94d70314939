"""A worker's memory on its GPU for tensors that go on to other models without leaving the GPU.

The pool is one allocation, made when the first output stays on the GPU, of the size that --cuda-memory-pool-byte-size
gives; other workers on the GPU open the pool's handle (workers/cuda_regions.py). A part of the pool belongs to the
block of the worker's slab that names the tensor: the batcher counts that block's holders, and when it sends FREE, or no
record has ever named the block, the part is free again. The driver frees the allocation of a worker that has died, once
readers have closed their handles. An output that finds no room goes through host memory.

    output on the GPU ─► part of the pool, copied there ─► block with its place ─► DONE … FREE ─► part is free
"""

import logging
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.request import Placed
from shoal.workers.faults import Fault, fault_of

if TYPE_CHECKING:
    from shoal.workers.cuda import CudaStream

_log = logging.getLogger(__name__)

#: The alignment of parts in bytes, equal to that of cudaMalloc, on which frameworks rely.
ALIGNMENT = 256


class Extents:
    """The free parts of a range of `nbytes` bytes: `take` gives away the first that fits, `put` joins adjacent free
    parts. Pure."""

    def __init__(self, nbytes: int) -> None:
        # Changed by take and put: (start, end) of each free part, in order, no two adjacent.
        self.free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []

    def take(self, nbytes: int) -> int | None:
        """Take a part of `nbytes` bytes, a multiple of ALIGNMENT. Returns the part's start; None if no free part is
        large enough."""
        for number, (start, end) in enumerate(self.free):
            if end - start >= nbytes:
                self.free[number : number + 1] = [(start + nbytes, end)] if end - start > nbytes else []
                return start
        return None

    def put(self, start: int, nbytes: int) -> None:
        """Give back a part that was taken. Raises ValueError if a byte of it is free already."""
        free, end = self.free, start + nbytes
        number = bisect_left(free, (start, end))
        before = free[number - 1] if number else (0, -1)
        after = free[number] if number < len(free) else (end + 1, end + 1)
        if before[1] > start or after[0] < end:
            raise ValueError(f"{start} to {end} of a pool is free already")
        if before[1] == start:
            start = before[0]
            free.remove(before)
        if after[0] == end:
            end = after[1]
            free.remove(after)
        insort(free, (start, end))


class PoolPart:
    """A part of a pool, with room for one tensor. It is given back with the last reference to this object."""

    __slots__ = ("_give_back", "_room", "address", "nbytes", "offset")

    def __init__(
        self, address: int, offset: int, nbytes: int, room: int, give_back: Callable[[int, int], None]
    ) -> None:
        self.address = address
        self.offset = offset  # bytes from the pool's start
        self.nbytes = nbytes
        self._room = room  # bytes of the pool that are taken: `nbytes`, rounded up
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self.offset, self._room)


class GpuPool:
    """The pool of one worker on the GPU with the server's number `gpu`, which is GPU 0 in this process. Any thread may
    use it."""

    def __init__(self, gpu: int, nbytes: int) -> None:
        self.gpu = gpu
        self.nbytes = nbytes
        #: Called when the pool's memory has been allocated.
        self.made: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        # Changed by the first `keep`: the memory's address and handle. If there is no memory, `nbytes` becomes 0.
        self.address = 0
        self.handle = b""
        self._stream: CudaStream | None = None
        self._wait: Callable[[], None] = lambda: None  # waits for all work of this process on the GPU
        # Changed by keep, under the lock: the free parts. Changed by finalizers, which may run at any point, even in a
        # thread that has the lock: parts that the next `keep` puts back.
        self._extents = Extents(0)
        self._returned: deque[tuple[int, int]] = deque()
        # Changed by hold and release: reference to a block → the parts that belong to the block.
        self._held: dict[int, tuple[PoolPart, ...]] = {}

    def keep(self, address: int, nbytes: int) -> PoolPart | None:
        """Copy a tensor of this process on the GPU into the pool, once all work on the GPU so far is done; the copy is
        complete when this returns. None if there is no room. Raises CudaError if the GPU is lost."""
        if not (0 < nbytes <= self.nbytes):
            return None
        with self._lock:
            if not self.address and not self._make():
                return None
            stream = self._stream
            assert stream is not None, "made with the memory"
            while self._returned:
                self._extents.put(*self._returned.popleft())
            room = -(-nbytes // ALIGNMENT) * ALIGNMENT
            offset = self._extents.take(room)
            if offset is None:
                return None
            part = PoolPart(self.address + offset, offset, nbytes, room, self._put_back)
            self._wait()
            stream.copy_there(part.address, address, nbytes)
            stream.synchronize()
        return part

    def place(self, part: PoolPart, offset: int = 0) -> bytes:
        """The place of a tensor that begins `offset` bytes after the part's start, packed for a block."""
        return Placed(self.gpu, self.handle, part.offset + offset).pack()

    def hold(self, ref: int, parts: tuple[PoolPart, ...]) -> None:
        """Keep the parts that the block `ref` names until `release` is called for the block."""
        self._held[ref] = parts

    def release(self, ref: int) -> None:
        """Give back the parts of a block that is freed, if it had any."""
        self._held.pop(ref, None)

    def _put_back(self, offset: int, nbytes: int) -> None:
        self._returned.append((offset, nbytes))

    def _make(self) -> bool:
        """Allocate the memory and export its handle. Returns False if that fails; there is no further attempt then."""
        try:
            from shoal.workers import cuda

            memory = cuda.DeviceMemory()
            memory.reserve(self.nbytes)
            self.handle = cuda.export_handle(memory.address)
            self._stream, self._wait = cuda.CudaStream(), cuda.wait_for_device
        except (ModuleNotFoundError, RuntimeError) as error:
            if fault_of(error) is Fault.DEVICE_LOST:
                raise
            _log.warning(
                "tensors do not stay on GPU %d between models: a pool of %d bytes could not be made there (%s)",
                self.gpu, self.nbytes, error,
            )  # fmt: skip
            self.nbytes = 0
            return False
        self.address = memory.address
        self._extents = Extents(self.nbytes)
        self.made()
        return True
