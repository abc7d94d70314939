"""TensorRT engines on a GPU: an instance has an execution context per optimization profile, a stream, page-locked
memory for inputs and outputs, and CUDA graphs if configured.

The only file, besides build.py, that imports tensorrt; CUDA itself is imported by workers/cuda.py. A batch goes from
page-locked memory to the GPU, through the engine and back into page-locked memory, all on the instance's stream, with
one wait, or two if the shape of an output is known only after the execution.
"""

import ctypes
import importlib
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.datatypes import BY_CONFIG_NAME
from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO, complete_from_file
from shoal.model_config.signature import Signature
from shoal.workers import cuda
from shoal.workers.backends import file_checks
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device
from shoal.workers.backends.tensorrt.profiles import (
    Bounds,
    Profile,
    check_max_batch_size,
    choose,
    graph_batch_sizes,
    wanted_profiles,
)
from shoal.workers.faults import Fault, fault_of
from shoal.workers.tensors import Array
from shoal.workers.warmup import run_zeros

#: The tensorrt package, installed only on machines with a GPU. It is not imported by a statement, since type checkers
#: on other machines would take `import tensorrt` to mean this file's package.
tensorrt: Any = importlib.import_module("tensorrt")

_log = logging.getLogger(__name__)

_TYPES = {
    "FLOAT": "TYPE_FP32", "HALF": "TYPE_FP16", "BF16": "TYPE_BF16", "INT8": "TYPE_INT8", "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64", "BOOL": "TYPE_BOOL", "UINT8": "TYPE_UINT8",
}  # fmt: skip
#: The most CUDA graphs that one instance tries to make: each has an execution context of its own, and so memory for
#: activations (ours).
MAX_GRAPHS = 16


Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
#: A captured run, the arrays of its outputs, and the context whose memory it uses.
_Captured: TypeAlias = tuple[cuda.CudaGraph, dict[str, Array], Any]


class Log(tensorrt.ILogger):  # type: ignore[misc]  # tensorrt has no type hints
    """A logger for TensorRT that writes to the server's log; it keeps the last error, which the backend reports as the
    reason when a call of TensorRT fails."""

    def __init__(self) -> None:
        tensorrt.ILogger.__init__(self)
        self.last_error = "TensorRT does not say why"

    def log(self, severity: Any, message: str) -> None:
        levels = tensorrt.ILogger.Severity
        if severity in (levels.INTERNAL_ERROR, levels.ERROR):
            self.last_error = message
            _log.error("TensorRT: %s", message)
        elif severity == levels.WARNING:
            _log.warning("TensorRT: %s", message)


class GrowingOutput(tensorrt.IOutputAllocator):  # type: ignore[misc]  # tensorrt has no type hints
    """An output whose shape TensorRT knows only when it has computed it, as after a non-maximum suppression."""

    def __init__(self, buffers: cuda.Buffers[cuda.DeviceMemory]) -> None:
        tensorrt.IOutputAllocator.__init__(self)
        self._buffers = buffers
        # These fields are changed by TensorRT while the engine executes.
        self.shape: tuple[int, ...] = ()
        self.error: cuda.CudaError | None = None  # why there was no memory: TensorRT does not pass on exceptions

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        """The address of memory for an output of at most `size` bytes; 0 if there is none. Called by TensorRT."""
        del memory, alignment, stream  # CUDA's own memory is aligned to 256 bytes and more
        try:
            return self._buffers.reserve(tensor_name, size).address
        except cuda.CudaError as error:
            self.error = error
            return 0

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        """Like `reallocate_output_async`, for versions of TensorRT that pass no stream."""
        return self.reallocate_output_async(tensor_name, memory, size, alignment, 0)

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        """Note an output's actual shape. Called by TensorRT."""
        del tensor_name
        self.shape = tuple(shape)


class TensorrtBackend(BatchedBackend):
    """One engine, with an execution context for each of the optimization profiles that the instance group names."""

    def __init__(self) -> None:
        # These fields are changed by describe, load and unload.
        self._log = Log()
        self._runtime: Any = None  # must outlive the engine
        self._engine: Any = None
        self._profiles: list[Profile] = []
        self._contexts: dict[int, Any] = {}
        self._input_names: tuple[str, ...] = ()
        self._output_names: tuple[str, ...] = ()
        self._asked_names: frozenset[str] = frozenset()  # outputs that the configuration has
        self._host_names: frozenset[str] = frozenset()  # tensors in host memory, such as shapes
        self._datatypes: dict[str, Any] = {}
        self._graph_batch_sizes: frozenset[int] | None = None
        self._stream: Any = None
        # These fields are changed by run.
        self._here = cuda.Buffers(cuda.PinnedMemory)
        self._there = cuda.Buffers(cuda.DeviceMemory)
        self._growing: dict[str, GrowingOutput] = {}  # outputs whose shapes depend on the data
        self._graphs: dict[Shapes, _Captured] = {}
        self._refused: set[Shapes] = set()  # shapes whose runs could not be captured
        self._num_moves = 0  # how often buffers had moved when the graphs were captured

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The engine's tensors, and the configuration that follows from them; the largest batch is the largest that a
        profile allows."""
        inputs, outputs = self._open(model)
        supported = check_max_batch_size(model.config, self._profiles, "autofill failed for")
        completed = complete_from_file(model.config, ModelIO(inputs, outputs), supported)
        return ModelIO(inputs, outputs, completed)

    def load(self, model: BackendModel, device: Device) -> None:
        inputs, outputs = self._open(model)
        signature = Signature.from_config(model.config)
        check_max_batch_size(model.config, self._profiles, "unable to load")
        if self._host_names and signature.max_batch_size:
            raise UnsupportedError(
                f"model '{model.name}': shape tensors are not supported with a batch dimension, whose requests could "
                "want different shapes; set max_batch_size to 0"
            )
        file_checks.check(signature, ModelIO(inputs, outputs))
        self._output_names = tuple(tensor.name for tensor in outputs)
        self._asked_names = frozenset(signature.outputs)
        self._datatypes = {tensor.name: BY_CONFIG_NAME[tensor.data_type] for tensor in (*inputs, *outputs)}
        self._graph_batch_sizes = graph_batch_sizes(model.config)
        self._stream = cuda.CudaStream()
        self._contexts = {profile.number: self._context(profile.number) for profile in self._profiles}
        self.stage = self._pinned
        if not model.config["model_warmup"]:
            self._run_smallest(model.instance_name)

    def unload(self) -> None:
        """Release the engine and the objects that use it, each before the objects that it needs."""
        self._graphs.clear()
        self._contexts.clear()
        self._growing.clear()
        self._engine = self._runtime = None

    def of_another_thread(self) -> "TensorrtBackend":
        """A backend for another instance that runs the same engine, with contexts, a stream and memory of its own."""
        other = TensorrtBackend()
        other._log, other._runtime, other._engine = self._log, self._runtime, self._engine
        return other

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _open(self, model: BackendModel) -> tuple[tuple[IOTensor, ...], tuple[IOTensor, ...]]:
        if self._engine is None:
            self._engine = self._deserialize(model)
        engine = self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT]
        host = tensorrt.TensorLocation.HOST
        self._host_names = frozenset(name for name in names if engine.get_tensor_location(name) == host)
        self._input_names = tuple(inputs)
        self._refuse_formats(model, names)
        wanted = wanted_profiles(model.config, model.instance_name, engine.num_optimization_profiles)
        self._profiles = [self._profile(index) for index in wanted]
        tensors = {name: self._io_tensor(model, name) for name in names}
        return tuple(tensors[name] for name in inputs), tuple(tensors[name] for name in names if name not in inputs)

    def _refuse_formats(self, model: BackendModel, names: Sequence[str]) -> None:
        """Raise UnsupportedError if the engine stores a tensor's elements in another order than clients send and
        receive."""
        for name in names:
            format_name = self._engine.get_tensor_format(name).name
            if format_name != "LINEAR":
                raise UnsupportedError(
                    f"unable to load model '{model.name}': tensor '{name}' has the format {format_name} in the engine, "
                    "and clients send and receive LINEAR; build the engine with inputs and outputs of format LINEAR"
                )

    def _deserialize(self, model: BackendModel) -> Any:
        try:
            with open(model.file, "rb") as file:
                data = file.read()
        except OSError as error:
            raise UnavailableError(
                f"unable to find '{model.file}' for model instance '{model.instance_name}'"
            ) from error
        for library in filter(None, model.backend_config.get("plugins", "").split(";")):
            try:
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise InvalidArgumentError(f"cannot load the TensorRT plugin library '{library}': {error}") from error
        tensorrt.init_libnvinfer_plugins(self._log, "")
        self._runtime = tensorrt.Runtime(self._log)
        self._runtime.engine_host_code_allowed = model.backend_config.get("version-compatible") == "true"
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise InternalError(
                f"unable to create TensorRT engine from '{model.file}': {self._log.last_error}. An engine runs on the "
                f"kind of GPU and the version of TensorRT it was built with (here {tensorrt.__version__}); "
                "'shoal build-engine' builds one"
            )
        return engine

    def _profile(self, index: int) -> Profile:
        engine = self._engine
        values = {
            name: Bounds(*(tuple(numbers) for numbers in engine.get_tensor_profile_values(index, name)))
            for name in self._host_names.intersection(self._input_names)
        }
        shapes = {
            name: Bounds(*(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index)))
            for name in self._input_names
        }
        return Profile(index, shapes, values)

    def _io_tensor(self, model: BackendModel, name: str) -> IOTensor:
        number_type = self._engine.get_tensor_dtype(name).name
        if number_type not in _TYPES:
            raise UnsupportedError(f"unsupported datatype {number_type} of tensor '{name}' of model '{model.name}'")
        return IOTensor(name, _TYPES[number_type], tuple(self._engine.get_tensor_shape(name)))

    def _context(self, profile: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise InternalError(f"unable to create TensorRT context: {self._log.last_error}")
        if not context.set_optimization_profile_async(profile, self._stream.handle):
            raise InternalError(f"unable to set optimization profile {profile}: {self._log.last_error}")
        self._stream.synchronize()
        return context

    def _run_smallest(self, instance_name: str) -> None:
        profile = self._profiles[0]
        inputs: dict[str, Array] = {}
        for name in self._input_names:
            inputs[name] = np.zeros(profile.shapes[name].least, self._datatypes[name].dtype)
            if name in profile.values:
                inputs[name][...] = np.reshape(profile.values[name].least, inputs[name].shape)
        run_zeros(self.run, inputs, instance_name)

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs, mostly in page-locked memory that the next run overwrites. Raises ShoalError for shapes that
        the engine does not take, CudaError if the GPU fails."""
        for name, array in inputs.items():
            self._gather(name, array)
        shapes: Shapes = tuple((name, array.shape) for name, array in inputs.items())
        captured = self._captured(shapes)
        if captured is not None:
            captured[0].launch()
            self._stream.synchronize()
            return captured[1]
        values = {name: tuple(inputs[name].ravel().tolist()) for name in self._host_names.intersection(inputs)}
        profile = choose(self._profiles, dict(shapes), values)
        context = self._contexts[profile.number]
        outputs = self._prepare(context, inputs)
        self._enqueue(context, inputs, outputs)
        self._stream.synchronize()
        if self._growing:
            return outputs | self._copy_grown()
        if self._may_capture(shapes):
            outputs = {name: array.copy() for name, array in outputs.items()}  # the next run overwrites this memory
            self._try_capture(shapes, profile.number, inputs)
        return outputs

    def _gather(self, name: str, array: Array) -> None:
        """Copy an input into page-locked memory, unless the batch was gathered in that memory already."""
        memory = np.ndarray(array.shape, array.dtype, self._pinned(name, array.nbytes))
        if _address(memory) != _address(array):
            np.copyto(memory, array)

    def _pinned(self, name: str, nbytes: int) -> memoryview:
        return self._here.reserve(name, nbytes).memory[:nbytes]

    def _prepare(self, context: Any, inputs: dict[str, Array]) -> dict[str, Array]:
        """Set the shapes and addresses of this batch in a context. Returns the batch's output arrays. Raises ShoalError
        if TensorRT refuses a shape or an output."""
        for name, array in inputs.items():
            if not context.set_input_shape(name, array.shape):
                raise InvalidArgumentError(
                    f"TensorRT does not take shape {list(array.shape)} for input '{name}': {self._log.last_error}"
                )
            context.set_tensor_address(name, self._place(name, array.nbytes))
        outputs: dict[str, Array] = {}
        for name in self._output_names:
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape:
                growing = self._growing.setdefault(name, GrowingOutput(self._there))
                growing.shape, growing.error = (), None
                if not context.set_output_allocator(name, growing):
                    raise InternalError(f"TensorRT takes no memory for output '{name}': {self._log.last_error}")
                continue
            dtype = self._datatypes[name].dtype
            nbytes = int(np.prod(shape)) * dtype.itemsize
            context.set_tensor_address(name, self._place(name, nbytes))  # also for outputs that are not asked for
            if name in self._asked_names:
                outputs[name] = np.ndarray(shape, dtype, self._pinned(name, nbytes))
        return outputs

    def _place(self, name: str, nbytes: int) -> int:
        """The address of `nbytes` bytes where TensorRT reads or writes a tensor."""
        return (self._here if name in self._host_names else self._there).reserve(name, nbytes).address

    def _enqueue(self, context: Any, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
        for name, array in inputs.items():
            if name not in self._host_names:
                self._stream.copy_in(self._place(name, 0), self._here.reserve(name, 0).address, array.nbytes)
        if not context.execute_async_v3(self._stream.handle):
            for growing in self._growing.values():
                if growing.error is not None:
                    raise growing.error
            raise InternalError(f"TensorRT failed to execute: {self._log.last_error}")
        for name, array in outputs.items():
            if name not in self._host_names:
                self._stream.copy_out(_address(array), self._place(name, 0), array.nbytes)

    def _copy_grown(self) -> dict[str, Array]:
        """The outputs whose shapes became known only in the run that has ended, in page-locked memory."""
        arrays: dict[str, Array] = {}
        for name, growing in self._growing.items():
            if name in self._asked_names:
                dtype = self._datatypes[name].dtype
                nbytes = int(np.prod(growing.shape)) * dtype.itemsize
                arrays[name] = np.ndarray(growing.shape, dtype, self._pinned(name, nbytes))
                self._stream.copy_out(_address(arrays[name]), self._place(name, 0), nbytes)
        self._stream.synchronize()
        return arrays

    # -- CUDA graphs --------------------------------------------------------------------------------------------------

    def _may_capture(self, shapes: Shapes) -> bool:
        sizes = self._graph_batch_sizes
        if sizes is None or self._host_names or shapes in self._refused:
            return False
        has_room = len(self._graphs) + len(self._refused) < MAX_GRAPHS
        return has_room and (not sizes or shapes[0][1][:1] in {(size,) for size in sizes})

    def _captured(self, shapes: Shapes) -> _Captured | None:
        """The graph for a batch of these shapes, None if there is none. All graphs are dropped if memory that they use
        has moved."""
        num_moves = self._here.num_moves + self._there.num_moves
        if num_moves != self._num_moves:
            for graph, _, _ in self._graphs.values():
                graph.destroy()
            self._graphs.clear()
            self._num_moves = num_moves
        return self._graphs.get(shapes)

    def _try_capture(self, shapes: Shapes, profile: int, inputs: dict[str, Array]) -> None:
        """Capture a run of these shapes as a CUDA graph for later batches, if that is possible; the present batch,
        `inputs`, has been computed already.

        A graph becomes unusable once the shapes of its execution context change, so each graph has its own context; and
        a context must have run once before its run is captured.
        """
        try:
            context = self._context(profile)
            outputs = self._prepare(context, inputs)
            self._enqueue(context, inputs, outputs)
            self._stream.synchronize()
            graph = self._stream.capture(lambda: self._enqueue(context, inputs, outputs))
            self._captured(shapes)  # drops graphs whose memory has moved
            self._graphs[shapes] = graph, outputs, context
        except (cuda.CudaError, ShoalError) as error:
            if fault_of(error) is Fault.DEVICE_LOST:
                raise
            self._refused.add(shapes)
            _log.warning("there will be no CUDA graph of batches of %s: %s", dict(shapes), error)
            self._stream.synchronize()  # until then, work in progress may use the context, which is released here


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
