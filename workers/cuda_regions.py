"""Memory of other processes on a GPU in the worker that executes their requests: clients' own (Triton's CUDA shared
memory), and pools of other workers, whose models have left a tensor there for this one (gpu_pool.py).

Where on a GPU a tensor lies, its place, stands in the request's header, or in a block that the header names
(shm/cuda_regions.py). A region's handle is opened with the first request that names it, once for each registration, and
closed when the client has unregistered the region. A pool's handle is opened once for each segment whose blocks name
it, and closed when the segment's owner has gone. All handles are closed with the process.

A backend that takes tensors on its own GPU reads an input in the other process's memory there. All other inputs are
copied from the GPU when the request is opened, so the model gets what the client had written before; outputs are copied
to the client's memory, out of the block of the answers, before the answers are published. CUDA itself is in
workers/cuda.py, which is imported when the first region is opened, since it needs cuda-bindings and a CUDA context on
the GPU.

    request opened ─► handle opened, if new ─► inputs copied ─► executed ─► outputs copied ─► DONE
"""

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.request import CudaTarget
from shoal.shm.cuda_regions import CudaPlace, is_pool, pool_number, unpack_place
from shoal.workers.faults import Fault, fault_of
from shoal.workers.tensors import Array

if TYPE_CHECKING:
    from shoal.workers.cuda import CudaStream

#: Most bytes of one input that are copied from a GPU into this process's memory (ours).
MAX_COPIED_NBYTES = 1 << 30
#: The most ended registrations that are remembered, since requests that wait in queues may still name them (ours).
_MAX_ENDED = 4096


class OpenHandle:
    """An open handle of another process's memory: the memory's address in this process, and its size. It is closed with
    the last reference to this object."""

    __slots__ = ("__weakref__", "_close", "address", "nbytes")

    def __init__(self, address: int, nbytes: int, close: Callable[[int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self._close = close

    def __del__(self) -> None:
        with suppress(RuntimeError):  # raised if the GPU is lost, and the mapping with it
            self._close(self.address)


class GpuTensor(NamedTuple):
    """An input that stays on the worker's own GPU: the model reads the memory of the client or of another worker, which
    stays that process's. `handle` keeps the memory mapped. Valid until the request is answered."""

    address: int
    nbytes: int
    handle: OpenHandle
    #: Makes a copy in this process's host memory.
    copy: Callable[[], memoryview]


class CudaRegions:
    """The regions whose handles this process has opened. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Changed by every method, under the lock. Number of a registration or pool → its handle's bytes, and the open
        # handle; ended registrations; the stream for copies; handle's bytes of this process's own pool → its memory,
        # since CUDA opens no handle in the process that has exported it.
        self._opened: dict[int, tuple[bytes, OpenHandle]] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._stream: CudaStream | None = None
        self._own: dict[bytes, OpenHandle] = {}

    def add_own(self, handle: bytes, address: int, nbytes: int) -> None:
        """Let places name memory of this process itself, by the handle that it exports: the memory is used as it is."""
        with self._lock:
            self._own[handle] = OpenHandle(address, nbytes, lambda _address: None)

    def read(self, place: bytes, offset: int, nbytes: int) -> memoryview:
        """A copy, read-only, of `nbytes` bytes at `offset` behind a place. Raises InvalidArgumentError if the handle
        cannot be opened, or its memory ends before these bytes."""
        if nbytes > MAX_COPIED_NBYTES:
            raise InvalidArgumentError(
                f"an input of {nbytes} bytes in CUDA shared memory exceeds the {MAX_COPIED_NBYTES} bytes that are "
                "copied to host memory; send it in several requests"
            )
        copied: Array = np.empty(nbytes, np.uint8)
        if nbytes:
            with self._lock:
                handle = self._part(place, offset, nbytes)
                stream = self._its_stream()
                stream.copy_out(copied.ctypes.data, handle.address + offset, nbytes)
                stream.synchronize()
        return copied.data.toreadonly()

    def keep(self, place: bytes, offset: int, nbytes: int) -> GpuTensor:
        """`nbytes` bytes at `offset` behind a place, not copied. Raises InvalidArgumentError as `read` does."""
        with self._lock:
            handle = self._part(place, offset, nbytes)
        return GpuTensor(handle.address + offset, nbytes, handle, lambda: self.read(place, offset, nbytes))

    def check(self, targets: Sequence[CudaTarget]) -> None:
        """Open the regions of a request's outputs. Raises InvalidArgumentError as `read` does."""
        with self._lock:
            for target in targets:
                self._part(target.place, target.offset, target.nbytes)

    def write(self, outputs: Sequence[tuple[CudaTarget, memoryview]]) -> None:
        """Copy outputs, each no larger than its target, to their targets; returns when all are copied. Raises
        InvalidArgumentError as `read` does."""
        with self._lock:
            for target, data in outputs:
                if data.nbytes:
                    handle = self._part(target.place, target.offset, data.nbytes)
                    stream, source = self._its_stream(), np.frombuffer(data, np.uint8).ctypes.data
                    stream.copy_in(handle.address + target.offset, source, data.nbytes)
                    stream.synchronize()

    def forget(self, number: int) -> None:
        """Close the handle of a registration that has ended, or of a pool, once no model reads the memory behind it. A
        request that still names the region opens the handle again, only for that request."""
        with self._lock:
            self._ended[number] = None
            while len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)
            opened = self._opened.pop(number, None)
        if opened is not None:
            alive = weakref.ref(opened[1])
            del opened
            if alive() is not None:
                gc.collect()  # an error's traceback may keep the handle in a cycle

    def forget_pool(self, owner: int) -> None:
        """Close the handle of the pool that was named by blocks of the segment `owner`, whose owner has gone."""
        self.forget(pool_number(owner))

    def wait_until_read(self) -> None:
        """Wait until all work of this process on the GPU is done, if memory there is open for requests' tensors: the
        inputs of models may be overwritten after this. Raises CudaError if some of the work failed."""
        if self._opened or self._own:
            from shoal.workers import cuda

            cuda.wait_for_device()

    def _part(self, packed: bytes, offset: int, nbytes: int) -> OpenHandle:
        """The open handle behind the place `packed`. Raises InvalidArgumentError if it cannot be opened, or if its
        memory ends before `offset` + `nbytes`."""
        try:
            place = unpack_place(packed)
        except ValueError as error:
            raise InternalError(f"a request header in shared memory is damaged: {error}") from error
        exported, handle = self._opened.get(place.number, (b"", None))
        if handle is None or exported != place.handle:
            handle = self._own.get(place.handle)
        if handle is None:
            handle = _open(place)
            if place.number not in self._ended:
                self._opened[place.number] = place.handle, handle
        if offset + nbytes > handle.nbytes and is_pool(place.number):
            raise InternalError(f"a tensor lies at {offset} + {nbytes} bytes of a worker's pool of {handle.nbytes}")
        if offset + nbytes > handle.nbytes:
            raise InvalidArgumentError(
                f"a tensor lies at {offset} + {nbytes} bytes of CUDA shared memory on GPU {place.device_id}, of which "
                f"the client has allocated {handle.nbytes} bytes: register the region with its real size"
            )
        return handle

    def _its_stream(self) -> "CudaStream":
        if self._stream is None:
            from shoal.workers.cuda import CudaStream

            self._stream = CudaStream()
        return self._stream


def _open(place: CudaPlace) -> OpenHandle:
    try:
        from shoal.workers import cuda
    except ModuleNotFoundError as error:
        what = "a tensor that another model has left on a GPU" if is_pool(place.number) else "CUDA shared memory"
        raise UnavailableError(
            f"{what} needs the package cuda-bindings in the model's Python environment: {error}"
        ) from error
    try:
        return OpenHandle(*cuda.open_handle(place.handle, place.device_id), cuda.close_handle)
    except cuda.CudaError as error:
        if fault_of(error) is Fault.DEVICE_LOST:
            raise
        if is_pool(place.number):
            raise UnavailableError(
                f"an input on GPU {place.device_id} is gone, or is not within reach of this instance: the memory of "
                f"the worker that has left it there cannot be opened: {error}"
            ) from None
        raise InvalidArgumentError(
            f"failed to open CUDA IPC handle of a registered region on GPU {place.device_id}: {error}"
        ) from None
