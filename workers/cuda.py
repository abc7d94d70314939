"""What Shoal itself asks of CUDA's runtime: page-locked and device memory, a stream, copies, graphs.

The only file that imports cuda-python (cuda.bindings, from the extras onnx-gpu and tensorrt); runs in a worker whose
instance has a GPU, which is number 0 there. Every failure is a CudaError in the words that faults.py reads. Memory here
grows and never shrinks; the end of the process gives it back.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

# There only with PyTorch's build for GPUs, and then without types.
from cuda.bindings import runtime  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]


class CudaError(RuntimeError):
    """A call failed; maybe because of what was asked of the GPU before it."""


class PinnedMemory:
    """Page-locked memory of this process, which a GPU reads and writes by itself."""

    def __init__(self) -> None:
        # Changed by reserve.
        self.address = 0
        self.memory = memoryview(b"")

    @property
    def nbytes(self) -> int:
        """How much there is."""
        return len(self.memory)

    def reserve(self, nbytes: int) -> None:
        """Have room for so many bytes, elsewhere where there is less; its contents are lost then, even if it raises."""
        if nbytes <= self.nbytes:
            return
        if self.address:
            address, self.address, self.memory = self.address, 0, memoryview(b"")
            _call(runtime.cudaFreeHost, address)
        self.address = int(_call(runtime.cudaMallocHost, nbytes))
        self.memory = memoryview((ctypes.c_char * nbytes).from_address(self.address)).cast("B")


class DeviceMemory:
    """Memory of the GPU."""

    def __init__(self) -> None:
        # Changed by reserve.
        self.address = 0
        self.nbytes = 0

    def reserve(self, nbytes: int) -> None:
        """Like that of PinnedMemory."""
        if nbytes <= self.nbytes:
            return
        if self.address:
            address, self.address, self.nbytes = self.address, 0, 0
            _call(runtime.cudaFree, address)
        self.address = int(_call(runtime.cudaMalloc, nbytes))
        self.nbytes = nbytes


_Memory = TypeVar("_Memory", PinnedMemory, DeviceMemory)


class Buffers(Generic[_Memory]):
    """Memory of one kind by the names of tensors."""

    def __init__(self, kind: Callable[[], _Memory]) -> None:
        self._kind: Callable[[], _Memory] = kind
        # Changed by reserve.
        self._buffers: dict[str, _Memory] = {}
        self.num_moves = 0  # how often one of them has come to lie elsewhere, or nowhere

    def reserve(self, name: str, nbytes: int) -> _Memory:
        """A tensor's memory, with room for so many bytes."""
        if name not in self._buffers:
            self._buffers[name] = self._kind()
        buffer = self._buffers[name]
        nbytes = max(1, nbytes)  # TensorRT wants an address even of nothing
        if nbytes > buffer.nbytes:
            self.num_moves += 1  # before: where there is no room for it, what was there is gone all the same
            buffer.reserve(nbytes)
        return buffer


def staging() -> Callable[[str, int], memoryview]:
    """Where a batch's inputs are gathered, page-locked, by name and size; it has undefined contents."""
    buffers = Buffers(PinnedMemory)
    return lambda name, nbytes: buffers.reserve(name, nbytes).memory[:nbytes]


class CudaStream:
    """An instance's queue of work for its GPU: done in order, and later than it is put there."""

    def __init__(self) -> None:
        # Not the default stream, which waits for all others and cannot be captured.
        self.handle = int(_call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking))

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """From this process's memory to the GPU's, by addresses."""
        self._copy(target, source, nbytes, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """The other way."""
        self._copy(target, source, nbytes, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, nbytes: int, kind: Any) -> None:
        _call(runtime.cudaMemcpyAsync, target, source, nbytes, kind, self.handle)

    def synchronize(self) -> None:
        """Wait until everything is done; raises what went wrong in it."""
        _call(runtime.cudaStreamSynchronize, self.handle)

    def capture(self, work: Callable[[], None]) -> "CudaGraph":
        """What `work` puts into the stream, not done but kept. It must not wait for the GPU, nor allocate."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _call(runtime.cudaStreamBeginCapture, self.handle, mode)
        try:
            work()
        except BaseException:
            # What ends a capture that has failed only says so: the first error tells why.
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
    """Captured work, to be done again and again at the price of one call: same addresses, same sizes."""

    def __init__(self, executable: Any, stream: CudaStream) -> None:
        self._executable = executable
        self._stream = stream

    def launch(self) -> None:
        """Put all of it into its stream."""
        _call(runtime.cudaGraphLaunch, self._executable, self._stream.handle)

    def destroy(self) -> None:
        """Not before the stream is synchronized."""
        _call(runtime.cudaGraphExecDestroy, self._executable)


def device_name() -> str:
    """The GPU and its compute capability: `NVIDIA H200 9.0`."""
    properties = _call(runtime.cudaGetDeviceProperties, 0)
    return f"{properties.name.decode()} {properties.major}.{properties.minor}"


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """What a function of the runtime returns after its status; raises CudaError where that is no success."""
    status, *results = function(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        _, words = runtime.cudaGetErrorString(status)
        raise CudaError(f"CUDA error {int(status)}: {words.decode()} ({status.name} in {function.__name__})")
    return results[0] if results else None
