"""ONNX models on ONNX Runtime: one session per process, which all instances of the process run, on the process's cores.
The only file of the backends that imports it.

A batch is run with `session.run`, or, if its outputs are large and their shapes known, with IO binding, so that they
are computed where clients read them. Models with BF16 are always run with IO binding: BF16 tensors travel as 16-bit
words. So are models on a GPU without strings: inputs are gathered in page-locked memory and bound from there, and ONNX
Runtime copies them to the device when they are bound.
"""

import ctypes
import importlib
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

# Before the import: ONNX Runtime 1.29 and later would send telemetry, from a thread that makes the process unfit to be
# forked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from shoal.datatypes import BF16, BY_NAME, BYTES, Datatype
from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.model_config import sequences
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends import file_checks, onnxruntime_options
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device
from shoal.workers.backends.onnxruntime_options import SessionSettings, session_settings
from shoal.workers.backends.output_shapes import OutputShapes
from shoal.workers.padding import ragged_batches
from shoal.workers.requests import Stage
from shoal.workers.tensors import Array
from shoal.workers.warmup import run_zeros, smallest_inputs

_log = logging.getLogger(__name__)

#: Outputs of a batch from which binding pays, in bytes. Measured with one thread, copy into the block included, run /
#: bound: 64 B 17 / 17 us, 64 KiB 20 / 24, 256 KiB 39 / 32, 600 KB 64 / 51, 4 MB 392 / 205; 32 rows of an MLP
#: 512-1024-10 (1280 bytes of outputs) 527 / 551.
BIND_NBYTES = 256 * 1024

#: ONNX's number of BFLOAT16 in TensorProto.DataType.
_ONNX_BFLOAT16 = 16

# ONNX Runtime's types, as "tensor(float)"; types that are missing here have no Triton datatype.
_TYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64",
    "tensor(string)": "BYTES", "tensor(bfloat16)": "BF16",
}  # fmt: skip

# Errors of a session: classes of its compiled module without a common parent, and RuntimeError from an IO binding.
_ORT_MODULE = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
_ORT_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(value for value in vars(_ORT_MODULE).values() if isinstance(value, type) and issubclass(value, Exception)),
)
_ORT_SENTENCE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


class OnnxruntimeBackend(BatchedBackend):
    """One ONNX Runtime session."""

    def __init__(self) -> None:
        # Changed by describe, load and unload.
        self._session: Any = None
        self._run_options: Any = None
        self._signature = Signature("", 0, {}, {})
        self._datatypes: dict[str, Datatype] = {}  # datatypes of all inputs
        self._output_names: list[str] = []
        self._scalars: dict[str, tuple[int, ...]] = {}  # tensors of rank 0 in the file → configured dims, all 1
        self._strings: tuple[str, ...] = ()
        self._shapes: OutputShapes | None = None  # None: not all are known
        self._needs_binding = False
        self._bind_nbytes = BIND_NBYTES

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        self._open(model, device)
        outputs = _io_tensors(self._session.get_outputs())
        onnxruntime_options.refuse_maps(model.name, model.config, outputs)
        return ModelIO(_io_tensors(self._session.get_inputs()), outputs)

    def load(self, model: BackendModel, device: Device) -> None:
        onnxruntime_options.refuse_bf16(model.config)
        signature = Signature.from_config(model.config)
        model_io = self.describe(model, device)
        initializers = _io_tensors(self._session.get_overridable_initializers())
        self.ragged = ragged = ragged_batches(model.config)
        made: Mapping[str, Datatype] = {} if ragged is None else ragged.made
        scattered: Collection[str] = () if ragged is None else ragged.scattered
        file_checks.check(signature, model_io, initializers, made, scattered)
        tensors = (*model_io.inputs, *model_io.outputs, *initializers)
        specs = (*signature.inputs.values(), *signature.outputs.values())
        self._signature = signature
        self._datatypes = {name: spec.datatype for name, spec in signature.inputs.items()} | dict(made)
        self._output_names = list(signature.outputs)
        dims = {spec.name: spec.model_dims for spec in specs}
        self._scalars = {tensor.name: dims.get(tensor.name, (1,)) for tensor in tensors if tensor.dims == ()}
        self._strings = tuple(spec.name for spec in signature.inputs.values() if spec.datatype is BYTES)
        self._needs_binding = any(spec.datatype is BF16 for spec in specs)
        if not sequences.states(model.config):  # the shapes of states, which clients do not see, are not known
            described = self._session.get_inputs(), self._session.get_outputs()
            file_inputs, file_outputs = [{each.name: each.shape for each in every} for every in described]
            is_known = not self._scalars.keys() & file_outputs
            self._shapes = OutputShapes.of(signature, file_inputs, file_outputs) if is_known else None
        if device.kind == "KIND_GPU" and not any(spec.datatype is BYTES for spec in specs):
            self._needs_binding, self._bind_nbytes = True, 0
            self.stage = _staging()
        if not (model.config["model_warmup"] or ragged):
            run_zeros(self.run, smallest_inputs(signature), model.instance_name)

    def unload(self) -> None:
        self._session = None

    def of_another_thread(self) -> "OnnxruntimeBackend":
        """A backend for another instance that runs the same session, as several threads may at once."""
        other = OnnxruntimeBackend()
        other._session, other._run_options = self._session, self._run_options
        return other

    def _open(self, model: BackendModel, device: Device) -> None:
        if self._session is not None:
            return
        path = os.path.join(model.file, os.path.basename(model.file)) if os.path.isdir(model.file) else model.file
        if not os.path.isfile(path):
            raise UnavailableError(f"unable to find '{path}' for model instance '{model.instance_name}'")
        if device.kind == "KIND_GPU" and hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()  # libraries of CUDA and cuDNN that were installed with pip
        settings = session_settings(model, device, onnxruntime.get_available_providers())
        try:
            # With the fallback, a session whose CUDA provider fails would go on with the CPU's alone, and print so.
            self._session = onnxruntime.InferenceSession(
                path, _session_options(settings, device.log_verbose, model), providers=list(settings.providers),
                enable_fallback=0,
            )  # fmt: skip
        except _ORT_ERRORS as error:
            raise _ort_error(error) from error
        onnxruntime_options.check_providers(model, settings.providers, self._session.get_providers())
        self._run_options = _run_options(settings, device.log_verbose)

    # -- running ------------------------------------------------------------------------------------------------------

    def known_outputs(self, inputs: dict[str, Array], rows: int) -> dict[str, tuple[int, ...]] | None:
        """The shapes of all outputs, if they are known and large enough for binding to pay; else None."""
        return None if self._shapes is None else self._shapes.of_batch(inputs, rows, self._bind_nbytes)

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs in fresh arrays. Raises InternalError with ONNX Runtime's text if the run fails."""
        inputs = self._as_onnx(inputs)
        if self._needs_binding:
            return self._run_bound(inputs, {})
        try:
            outputs = self._session.run(self._output_names, inputs, self._run_options)
        except UnicodeDecodeError as error:
            raise InternalError(
                f"model '{self._signature.name}' returned a string that is not UTF-8: {error}"
            ) from error
        except _ORT_ERRORS as error:
            raise _ort_error(error) from error
        return self._as_configured(dict(zip(self._output_names, outputs, strict=True)))

    def run_into(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> dict[str, Array] | None:
        """Compute the outputs in place. They are returned instead if their shapes differ from those that the file's
        names of dimensions promised. Raises InternalError as `run` does."""
        assert self._shapes is not None, "they were known"
        try:
            self._run_bound(self._as_onnx(inputs), outputs)
        except InternalError:
            if not self._shapes.are_guessed:
                raise
            returned = self.run(inputs)
            _log.info(
                "model '%s' has outputs of other shapes than the names of dimensions in its file promise; from now on "
                "they are copied", self._signature.name,
            )  # fmt: skip
            self._shapes = None
            return returned
        return None

    def _run_bound(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> dict[str, Array]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            if not array.flags.c_contiguous:
                array = inputs[name] = np.ascontiguousarray(array)
            self._bind(binding.bind_input, self._datatypes[name], name, array)
        for name in self._output_names:
            if name in outputs:
                self._bind(binding.bind_output, self._signature.outputs[name].datatype, name, outputs[name])
            else:
                binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except _ORT_ERRORS as error:
            raise _ort_error(error) from error
        if outputs:
            return outputs
        results = zip(self._signature.outputs.values(), binding.get_outputs(), strict=True)
        return self._as_configured({spec.name: _to_numpy(spec.datatype, value) for spec, value in results})

    @staticmethod
    def _bind(bind: Any, datatype: Datatype, name: str, array: Array) -> None:
        element_type = _ONNX_BFLOAT16 if datatype is BF16 else datatype.dtype.type
        bind(name, "cpu", 0, element_type, array.shape, array.__array_interface__["data"][0])

    def _as_onnx(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The inputs as the session takes them: strings as str, scalars without a dimension."""
        if not self._strings and not self._scalars:
            return inputs
        converted = dict(inputs)
        for name in self._strings:
            if name in inputs:
                converted[name] = _as_text(self._signature.name, name, inputs[name])
        for name in self._scalars:
            if name in inputs:
                converted[name] = converted[name].reshape(())
        return converted

    def _as_configured(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs, with the configured shape if they have no dimensions. An output whose rank the file leaves
        open may have dimensions."""
        for name, dims in self._scalars.items():
            if name in outputs and not outputs[name].ndim:
                outputs[name] = outputs[name].reshape(dims)
        return outputs


def _staging() -> Stage | None:
    """Page-locked memory for inputs. None, with a line in the log, if cuda-python is missing: then inputs are copied to
    the GPU from ordinary memory, which takes longer."""
    try:
        from shoal.workers import cuda
    except ImportError as error:
        _log.info(
            "inputs are not gathered in page-locked memory: %s. Install it with: pip install cuda-bindings", error
        )
        return None
    return cuda.staging()


def _as_text(model: str, name: str, array: Array) -> Array:
    """An array of str made of an array of bytes. As in Triton, which gives ONNX Runtime C strings, an element ends at
    its first NUL."""
    text: Array = np.empty(array.shape, BYTES.dtype)
    try:
        text.reshape(-1)[:] = [element.split(b"\0", 1)[0].decode() for element in array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"input '{name}' of model '{model}' has an element that is not UTF-8, which ONNX Runtime needs: {error}"
        ) from error
    return text


def _to_numpy(datatype: Datatype, value: Any) -> Array:
    """A copy of an output that ONNX Runtime allocated. BF16 has no numpy form, so its 16-bit words are read."""
    if datatype is not BF16:
        array: Array = value.numpy()
        return array
    words: Array = np.empty(tuple(value.shape()), datatype.dtype)
    if words.nbytes:
        ctypes.memmove(words.__array_interface__["data"][0], value.data_ptr(), words.nbytes)
    return words


def _ort_error(error: Exception, more: str = "") -> InternalError:
    """The error for one of ONNX Runtime's: its number (1 = FAIL if it gives none) and text, and the sentence `more`."""
    match = _ORT_SENTENCE.match(str(error))
    code, message = (int(match[1]), match[2].strip()) if match else (1, str(error).strip())
    return InternalError(f"onnx runtime error {code}: {message}{more}")


def _io_tensors(arguments: Sequence[Any]) -> tuple[IOTensor, ...]:
    """Inputs or outputs of a session from its NodeArgs; a dimension that is no number is dynamic."""
    tensors = []
    for argument in arguments:
        name = _TYPES.get(argument.type)
        data_type = BY_NAME[name].config_name if name else argument.type
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
        tensors.append(IOTensor(argument.name, data_type, dims))
    return tuple(tensors)


def _session_options(settings: SessionSettings, log_verbose: int, model: BackendModel) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    options.inter_op_num_threads = settings.inter_op_num_threads
    if settings.parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings.graph_level)
    options.enable_cpu_mem_arena = settings.enable_cpu_mem_arena
    options.enable_mem_pattern = settings.enable_mem_pattern
    options.log_severity_level = 1 if log_verbose else 2
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for name in settings.custom_op_libraries:
        _register_operators(options, name, model)
    return options


def _register_operators(options: Any, name: str, model: BackendModel) -> None:
    """Load a library of operators: from the version's directory, the model's, or wherever the system's loader finds
    it."""
    directories = (model.version_dir, os.path.dirname(model.version_dir))
    places = dict.fromkeys(os.path.join(directory, name) for directory in directories)  # one if `name` is absolute
    try:
        options.register_custom_ops_library(next(filter(os.path.isfile, places), name))
    except _ORT_ERRORS as error:
        raise _ort_error(
            error,
            f". Model '{model.name}' names '{name}' in op_library_filename, looked for as {' and '.join(places)}, then "
            "as the system's loader does, with LD_LIBRARY_PATH",
        ) from error


def _run_options(settings: SessionSettings, log_verbose: int) -> Any:
    """Options of a run. A failed run is reported to its client, so ONNX Runtime need not log it, too."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 1 if log_verbose else 4
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options
