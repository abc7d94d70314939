"""The functions of CUDA's runtime that Shoal itself uses: for page-locked memory and a GPU's own, streams, copies,
graphs, and handles of other processes' memory on a GPU.

The only file that imports cuda-python (cuda.bindings, from the extras onnx-gpu and tensorrt); it runs in a worker whose
instance has a GPU, which has number 0 in that process, or whose clients' tensors are on a GPU. Every failure is a
CudaError with a text that faults.py recognises. Memory here grows and never shrinks; it is freed when the process ends.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

# cuda-python is installed only with Shoal's extras for GPUs, and has no type hints.
from cuda.bindings import runtime  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]


class CudaError(RuntimeError):
    """A call of CUDA's runtime failed; the cause may be earlier work on the GPU."""


class DeviceMemory:
    """Memory of the GPU."""

    _ALLOCATE, _FREE = "cudaMalloc", "cudaFree"  # names of CUDA's functions

    def __init__(self) -> None:
        # These fields are changed by reserve.
        self.address = self.nbytes = 0

    def reserve(self, nbytes: int) -> None:
        """Make the memory at least `nbytes` bytes large. Memory that grows moves, and its contents are lost, even if
        there is no larger memory and this raises CudaError."""
        if nbytes <= self.nbytes:
            return
        if self.address:
            address, self.address, self.nbytes = self.address, 0, 0
            _call(getattr(runtime, self._FREE), address)
        self.address = int(_call(getattr(runtime, self._ALLOCATE), nbytes))
        self.nbytes = nbytes


class PinnedMemory(DeviceMemory):
    """Page-locked memory of this process, which a GPU reads and writes by itself."""

    _ALLOCATE, _FREE = "cudaMallocHost", "cudaFreeHost"

    #: The memory in bytes. Changed by reserve.
    memory = memoryview(b"")

    def reserve(self, nbytes: int) -> None:
        if nbytes > self.nbytes:
            self.memory = memoryview(b"")  # let go before the memory behind it is freed
            super().reserve(nbytes)
            self.memory = memoryview((ctypes.c_char * nbytes).from_address(self.address)).cast("B")


_Memory = TypeVar("_Memory", PinnedMemory, DeviceMemory)


class Buffers(Generic[_Memory]):
    """Memory of one kind (page-locked or on the GPU): a buffer for each tensor's name."""

    def __init__(self, kind: Callable[[], _Memory]) -> None:
        self._kind: Callable[[], _Memory] = kind
        # These fields are changed by reserve.
        self._buffers: dict[str, _Memory] = {}
        self.num_moves = 0  # how often a buffer has moved, or was lost as there was no larger one

    def reserve(self, name: str, nbytes: int) -> _Memory:
        """A tensor's buffer, made or grown to at least `nbytes` bytes; it stays this object's. Raises CudaError if
        there is no memory for it."""
        if name not in self._buffers:
            self._buffers[name] = self._kind()
        buffer = self._buffers[name]
        nbytes = max(1, nbytes)  # TensorRT needs an address even for an empty tensor
        if nbytes > buffer.nbytes:
            self.num_moves += 1  # before the call, which loses the old memory even if it fails
            buffer.reserve(nbytes)
        return buffer


def staging() -> Callable[[str, int], memoryview]:
    """A function from name and size in bytes to the page-locked memory where a batch's input is gathered; contents
    undefined."""
    buffers = Buffers(PinnedMemory)
    return lambda name, nbytes: buffers.reserve(name, nbytes).memory[:nbytes]


class CudaStream:
    """An instance's queue of work for its GPU, which does it in order, while this process goes on."""

    def __init__(self) -> None:
        # CUDA's default stream will not do: it waits for all other streams, and its work cannot be captured as a graph.
        self.handle = int(_call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking))

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes from this process's memory to the GPU's, by addresses."""
        self._copy(target, source, nbytes, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes from the GPU's memory to this process's, by addresses."""
        self._copy(target, source, nbytes, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, nbytes: int, kind: Any) -> None:
        _call(runtime.cudaMemcpyAsync, target, source, nbytes, kind, self.handle)

    def copy_there(self, target: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes within the GPU's memory, by addresses."""
        self._copy(target, source, nbytes, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice)

    def synchronize(self) -> None:
        """Wait until all work in the stream is done; raises CudaError if some of it failed."""
        _call(runtime.cudaStreamSynchronize, self.handle)

    def capture(self, work: Callable[[], None]) -> "CudaGraph":
        """A graph of the work that `work` puts into the stream; the work is recorded, and not done now. `work` must
        neither wait for the GPU nor allocate. Raises CudaError if the work cannot be captured."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _call(runtime.cudaStreamBeginCapture, self.handle, mode)
        try:
            work()
        except BaseException:
            # After a failed capture the end of the capture fails, too, but only the first error says the reason.
            status, captured = runtime.cudaStreamEndCapture(self.handle)
            if status == runtime.cudaError_t.cudaSuccess:
                runtime.cudaGraphDestroy(captured)
            raise
        captured = _call(runtime.cudaStreamEndCapture, self.handle)
        try:
            return CudaGraph(_call(runtime.cudaGraphInstantiate, captured, 0), self)
        finally:
            _call(runtime.cudaGraphDestroy, captured)


class CudaGraph:
    """Work that was captured in a stream: one call repeats all of it, with the addresses and sizes that it had when it
    was captured."""

    def __init__(self, executable: Any, stream: CudaStream) -> None:
        self._executable = executable
        self._stream = stream

    def launch(self) -> None:
        """Put all captured work into the graph's stream."""
        _call(runtime.cudaGraphLaunch, self._executable, self._stream.handle)

    def destroy(self) -> None:
        """Free the graph; its stream must have been synchronized."""
        _call(runtime.cudaGraphExecDestroy, self._executable)


def wait_for_device() -> None:
    """Wait until all work of this process on the GPU is done, in whatever stream; raises CudaError if some of it
    failed."""
    _call(runtime.cudaDeviceSynchronize)


def open_handle(handle: bytes, device: int) -> tuple[int, int]:
    """The address in this process of the memory that another process exports by the cudaIpcMemHandle_t `handle`, and
    the memory's size in bytes. The address is valid until `close_handle`.

    The memory is mapped for the GPU `device` if this process sees several GPUs, else for its only GPU. If the memory is
    on another GPU, CUDA reaches it if the two GPUs are peers. Raises CudaError.
    """
    from cuda.bindings import driver  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    made = runtime.cudaIpcMemHandle_t()
    ctypes.memmove(made.getPtr(), handle, len(handle))
    current = int(_call(runtime.cudaGetDevice))
    mapped_for = device if device < int(_call(runtime.cudaGetDeviceCount)) else current
    _call(runtime.cudaSetDevice, mapped_for)
    try:
        address = int(_call(runtime.cudaIpcOpenMemHandle, made, runtime.cudaIpcMemLazyEnablePeerAccess))
    finally:
        if mapped_for != current:
            _call(runtime.cudaSetDevice, current)
    status, base, nbytes = driver.cuMemGetAddressRange(address)
    if int(status):
        close_handle(address)
        raise CudaError(f"CUDA error {int(status)}: the size of another process's memory is not known ({status.name})")
    return address, int(base) + int(nbytes) - address


def export_handle(address: int) -> bytes:
    """The cudaIpcMemHandle_t by which other processes open this process's memory at `address` on the GPU. Raises
    CudaError."""
    made = _call(runtime.cudaIpcGetMemHandle, address)
    return ctypes.string_at(made.getPtr(), runtime.CUDA_IPC_HANDLE_SIZE)


def close_handle(address: int) -> None:
    """Unmap the memory of another process. Raises CudaError."""
    _call(runtime.cudaIpcCloseMemHandle, address)


def device_name() -> str:
    """The GPU's name and compute capability, such as `NVIDIA H200 9.0`."""
    properties = _call(runtime.cudaGetDeviceProperties, 0)
    return f"{properties.name.decode()} {properties.major}.{properties.minor}"


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """The result of a function of CUDA's runtime, without the status that comes first; raises CudaError if the status
    is not success."""
    status, *results = function(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        _, words = runtime.cudaGetErrorString(status)
        raise CudaError(f"CUDA error {int(status)}: {words.decode()} ({status.name} in {function.__name__})")
    return results[0] if results else None
