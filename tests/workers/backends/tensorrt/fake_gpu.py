"""Fakes of CUDA's runtime and TensorRT on the CPU, as far as Shoal calls them: a stream is a list of tasks.

Device memory is memory of this process, so a copy that is missing, too early or at a stale address gives wrong numbers.
The engine doubles X into Y, and writes the sum of each row into SUM; a larger one writes those of X that are positive
into KEPT.
"""

import ctypes
import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

_FRESH = ("shoal.workers.cuda", "shoal.workers.backends.tensorrt", "shoal.workers.backends.tensorrt.backend")


class Status(enum.IntEnum):
    """As cudaError_t."""

    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorLaunchFailure = 719
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class Runtime(ModuleType):
    """cuda.bindings.runtime. `fails` is what the next call of each name comes to."""

    cudaError_t = Status
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
    cudaStreamNonBlocking = 1

    def __init__(self) -> None:
        super().__init__("runtime")
        self.memory: dict[int, Any] = {}
        self.queue: list[Callable[[], None]] = []
        self.captured: list[Callable[[], None]] | None = None
        self.calls: list[str] = []
        self.fails: dict[str, Status] = {}
        self.fails_captured: dict[str, Status] = {}  # the same, of calls while a stream is captured
        words = {
            Status.cudaErrorMemoryAllocation: b"out of memory",
            Status.cudaErrorLaunchFailure: b"unspecified launch failure",
            Status.cudaErrorStreamCaptureUnsupported: b"operation not permitted when stream is capturing",
            Status.cudaErrorStreamCaptureInvalidated: b"operation failed due to a previous error during capture",
        }
        self.cudaGetErrorString = lambda status: (Status.cudaSuccess, words[status])
        for name in ("cudaMallocHost", "cudaMalloc"):
            self._add(name, self._allocate)
        for name in ("cudaFreeHost", "cudaFree"):
            self._add(name, lambda address: self.memory.pop(address) and None)
        self._add("cudaStreamCreateWithFlags", lambda _flags: 7)
        self._add("cudaMemcpyAsync", self._copy)
        self._add("cudaStreamSynchronize", self._synchronize)
        self._add("cudaStreamBeginCapture", self._begin_capture)
        self._add("cudaStreamEndCapture", self._end_capture)
        self._add("cudaGraphInstantiate", lambda graph, _flags: graph)
        self._add("cudaGraphLaunch", lambda graph, _stream: self.queue.extend(graph))
        self._add("cudaGraphDestroy", lambda _graph: None)
        self._add("cudaGraphExecDestroy", lambda graph: graph.clear())
        properties = SimpleNamespace(name=b"Fake GPU", major=9, minor=0)
        self._add("cudaGetDeviceProperties", lambda _device: properties)

    def _add(self, name: str, function: Callable[..., Any]) -> None:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            fails = self.fails if self.captured is None else self.fails_captured
            status = fails.pop(name, Status.cudaSuccess)
            if status:
                self.captured = None if name == "cudaStreamEndCapture" else self.captured
                return status, None
            result = function(*arguments)
            return (status,) if result is None else (status, result)

        call.__name__ = name
        setattr(self, name, call)

    def put(self, work: Callable[[], None]) -> None:
        """As a kernel is launched: later, in order."""
        (self.queue if self.captured is None else self.captured).append(work)

    def _allocate(self, nbytes: int) -> int:
        buffer = ctypes.create_string_buffer(b"\xee" * nbytes, nbytes)
        address = ctypes.addressof(buffer)
        self.memory[address] = buffer
        return address

    def _copy(self, target: int, source: int, nbytes: int, _kind: int, _stream: int) -> None:
        def copy() -> None:
            assert target in self.memory, "copied to memory that was freed"
            assert source in self.memory, "copied from memory that was freed"
            ctypes.memmove(target, source, nbytes)

        self.put(copy)

    def _synchronize(self, _stream: int) -> None:
        assert self.captured is None, "nobody waits while a stream is captured"
        work, self.queue = self.queue, []
        for each in work:
            each()

    def _begin_capture(self, _stream: int, _mode: int) -> None:
        self.captured = []

    def _end_capture(self, _stream: int) -> list[Callable[[], None]]:
        captured, self.captured = self.captured, None
        assert captured is not None
        return captured


class ILogger:
    """As TensorRT's."""

    class Severity(enum.Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3


class IOutputAllocator:
    """As TensorRT's."""


class Engine:
    """X [-1, 3] → Y [-1, 3], SUM [-1], and with `keeps` KEPT [-1]; a profile for batches of 1 to 4, one for 5 to 64."""

    num_optimization_profiles = 2
    _SHAPES: ClassVar = {"X": (-1, 3), "Y": (-1, 3), "SUM": (-1,), "KEPT": (-1,)}
    _PROFILES = (((1, 3), (2, 3), (4, 3)), ((5, 3), (32, 3), (64, 3)))

    def __init__(self, runtime: Runtime, log: Any, *, keeps: bool = False, odd: str = "") -> None:
        self.runtime = runtime
        self.log = log
        self.fails = False
        self.names = ("X", "Y", "SUM", "KEPT") if keeps else ("X", "Y", "SUM")
        self.num_io_tensors = len(self.names)
        self._odd = odd  # a tensor that is not linear

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "INPUT" if name == "X" else "OUTPUT"

    def get_tensor_location(self, _name: str) -> str:
        return "DEVICE"

    def get_tensor_format(self, name: str) -> Any:
        return SimpleNamespace(name="CHW32" if name == self._odd else "LINEAR")

    def get_tensor_dtype(self, _name: str) -> Any:
        return SimpleNamespace(name="FLOAT")

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._SHAPES[name]

    def get_tensor_profile_shape(self, _name: str, profile: int) -> Any:
        return self._PROFILES[profile]

    def create_execution_context(self) -> "Context":
        return Context(self)


class Context:
    """One execution context; it must run once after its shape has changed before that can be captured."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._profile = 0
        self._rows = 0
        self._has_run = False
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, profile: int, _stream: int) -> bool:
        self._profile = profile
        return True

    def set_input_shape(self, _name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = Engine._PROFILES[self._profile]
        self._has_run = self._has_run and shape[0] == self._rows
        self._rows = shape[0]
        return least <= shape <= most

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) if name == "KEPT" else (self._rows, *Engine._SHAPES[name][1:])

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def execute_async_v3(self, _stream: int) -> bool:
        engine, rows, addresses = self._engine, self._rows, dict(self._addresses)
        if engine.fails:
            engine.log.log(ILogger.Severity.ERROR, "Error Code 1: Cuda Runtime (misaligned address)")
            return False
        if "KEPT" in self._allocators:
            addresses["KEPT"] = self._allocators["KEPT"].reallocate_output_async("KEPT", 0, rows * 3 * 4, 256, 7)
        if not all(map(addresses.get, engine.names)):
            engine.log.log(ILogger.Severity.ERROR, "Error Code 3: API Usage Error (tensor has no address)")
            return False
        assert self._has_run or engine.runtime.captured is None, "captured before it has run"
        self._has_run = True

        def kernel() -> None:
            x, y, sums = (
                np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(addresses[name]))
                for name, width in (("X", 3), ("Y", 3), ("SUM", 1))
            )
            y[...] = 2 * x
            sums[...] = x.reshape(rows, 3).sum(axis=1)
            if "KEPT" in engine.names:
                positive = x[x > 0]
                ctypes.memmove(addresses["KEPT"], positive.ctypes.data, positive.nbytes)
                self._allocators["KEPT"].notify_shape("KEPT", positive.shape)

        engine.runtime.put(kernel)
        return True


@contextmanager
def fake_gpu() -> Iterator[tuple[Runtime, ModuleType]]:
    """Both in place of the packages, and of all that has imported them; the runtime, and TensorRT."""
    runtime, tensorrt = Runtime(), ModuleType("tensorrt")
    engines: list[Engine] = []

    def deserialize(log: Any, data: bytes) -> Engine | None:
        engine = {
            b"an engine": lambda: Engine(runtime, log),
            b"an engine that keeps": lambda: Engine(runtime, log, keeps=True),
            b"a vectorised engine": lambda: Engine(runtime, log, odd="Y"),
        }.get(data)
        if engine is None:
            log.log(ILogger.Severity.ERROR, "Serialization assertion magicTagRead failed")
            return None
        engines.append(engine())
        return engines[-1]

    members: dict[str, Any] = {
        "ILogger": ILogger,
        "IOutputAllocator": IOutputAllocator,
        "TensorIOMode": SimpleNamespace(INPUT="INPUT"),
        "TensorLocation": SimpleNamespace(HOST="HOST"),
        "Runtime": lambda log: SimpleNamespace(deserialize_cuda_engine=lambda data: deserialize(log, data)),
        "init_libnvinfer_plugins": lambda _log, _namespace: None,
        "__version__": "10.0",
        "engines": engines,
    }
    for name, value in members.items():
        setattr(tensorrt, name, value)
    modules = {"cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings"), "tensorrt": tensorrt}
    modules |= {"cuda.bindings.runtime": runtime}
    modules["cuda.bindings"].runtime = runtime  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in modules}
    _forget()
    sys.modules.update(modules)
    try:
        yield runtime, tensorrt
    finally:
        _forget()
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _forget() -> None:
    """Modules are found in sys.modules, and as attributes of their packages."""
    for name in _FRESH:
        sys.modules.pop(name, None)
        package, _, own = name.rpartition(".")
        if package in sys.modules and hasattr(sys.modules[package], own):
            delattr(sys.modules[package], own)
