"""OpenVINO models, and models in other formats that OpenVINO reads: one compiled model per instance. The only file that
imports OpenVINO.

The first dimension of inputs is made dynamic, so that a batch runs at its own size; Triton's backend runs every batch
at one compiled size. Inputs are copied once, since OpenVINO accepts only writable memory, and outputs once, into the
block of the answers. OpenVINO does not write outputs into that block itself: if an output's shape were not the expected
one, it would write the output elsewhere without an error.
"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# The import of OpenVINO's conversion tools is blocked: they would send statistics to OpenVINO's makers, from a
# thread that makes the process unfit to be forked, and take a third of the import's time.
if "openvino" not in sys.modules:
    sys.modules["openvino.tools.ovc"] = None  # type: ignore[assignment]  # makes the import raise ImportError
import openvino

from shoal.datatypes import BF16, BY_NAME
from shoal.errors import InternalError, UnavailableError, UnsupportedError
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature, TensorSpec
from shoal.workers.backends import file_checks
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device, with_rows
from shoal.workers.backends.openvino_options import OpenvinoSettings, openvino_settings
from shoal.workers.tensors import Array
from shoal.workers.warmup import run_zeros, smallest_inputs

# OpenVINO's types → Triton's datatypes. A missing type has no Triton datatype, or no plugin of OpenVINO takes it.
_TYPES = {
    "boolean": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64", "i8": "INT8", "i16": "INT16",
    "i32": "INT32", "i64": "INT64", "f16": "FP16", "f32": "FP32", "f64": "FP64", "bf16": "BF16",
}  # fmt: skip
_TYPE_OF = {datatype: getattr(openvino.Type, name) for name, datatype in _TYPES.items()}
_NAME_OF = {type_.get_type_name(): datatype for datatype, type_ in _TYPE_OF.items()}


class OpenvinoBackend(BatchedBackend):
    """One instance of a model: its compiled model, and one infer request, by which OpenVINO runs it."""

    def __init__(self) -> None:
        # These fields are changed by describe, load and unload.
        self._core: Any = None
        self._model: Any = None  # the model as read; None once it is compiled
        self._request: Any = None
        self._name = ""
        self._inputs: dict[str, int] = {}  # name → position in the model
        self._outputs: dict[str, int] = {}
        self._bf16: frozenset[str] = frozenset()  # inputs and outputs of datatype BF16, passed as 16-bit words
        self._fixed_rows = 0  # number of rows that every execution must have; 0 = any number
        self._pads_batches = False

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The inputs and outputs of the file. max_batch_size is derived from them only if the layout of each names its
        batch dimension."""
        self._read(model, openvino_settings(model, device))
        ports = (*self._model.inputs, *self._model.outputs)
        layouts = [openvino.layout_helpers.get_layout(port) for port in ports]
        says_batch = all(openvino.layout_helpers.has_batch(layout) for layout in layouts)
        is_batched = says_batch or model.config["max_batch_size"] > 0  # `load` makes the first dimensions dynamic
        inputs, outputs = (
            _io_tensors(ports, [tensor["name"] for tensor in model.config[role]])
            for role, ports in (("input", self._model.inputs), ("output", self._model.outputs))
        )
        if is_batched:
            inputs, outputs = (
                tuple([tensor._replace(dims=(-1, *tensor.dims[1:])) for tensor in tensors])
                for tensors in (inputs, outputs)
            )
        return ModelIO(inputs, outputs, fills_max_batch_size=says_batch)

    def load(self, model: BackendModel, device: Device) -> None:
        settings, signature = openvino_settings(model, device), Signature.from_config(model.config)
        file_checks.refuse_optional(signature, "OpenVINO")
        self._read(model, settings)
        shaped, self._fixed_rows = _shaped(self._model, signature, settings)
        inputs = _as_served(shaped.inputs, signature.inputs, "input", model.name, self._fixed_rows)
        outputs = _as_served(shaped.outputs, signature.outputs, "output", model.name, self._fixed_rows)
        file_checks.check(signature, ModelIO(inputs, outputs))
        converted = _converted(shaped, signature)
        with _errors_in("loading model"):
            self._request = self._core.compile_model(converted, "CPU", settings.properties).create_infer_request()
        self._model = None
        self._name, self._pads_batches = model.name, settings.pads_batches
        self._inputs = {tensor.name: position for position, tensor in enumerate(inputs)}
        self._outputs = {
            tensor.name: position for position, tensor in enumerate(outputs) if tensor.name in signature.outputs
        }
        specs = (*signature.inputs.values(), *signature.outputs.values())
        self._bf16 = frozenset(spec.name for spec in specs if spec.datatype is BF16)
        if not model.config["model_warmup"]:
            run_zeros(self.run, smallest_inputs(signature), model.instance_name)

    def unload(self) -> None:
        self._request = self._model = self._core = None

    def _read(self, model: BackendModel, settings: OpenvinoSettings) -> None:
        if self._model is not None:
            return
        if not os.path.exists(model.file):
            raise UnavailableError(f"unable to find '{model.file}' for model instance '{model.instance_name}'")
        self._core = openvino.Core()
        with _errors_in("loading custom CPU extensions"):
            if settings.extension:
                self._core.add_extension(settings.extension)
        with _errors_in("reading model"):
            self._model = self._core.read_model(model.file)

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs in OpenVINO's memory, valid until the next run. Raises InternalError with OpenVINO's text if
        the run fails."""
        rows = len(next(iter(inputs.values()))) if self._fixed_rows else 0
        if rows != self._fixed_rows:
            inputs = self._padded(inputs, rows)
        request = self._request
        try:
            for name, array in inputs.items():
                request.set_input_tensor(self._inputs[name], _tensor(array, name in self._bf16))
            request.start_async()
            request.wait()
        except RuntimeError as error:  # without `with _errors_in`, which would cost time in each batch
            raise _openvino_error("running inference", error) from error
        outputs: dict[str, Array] = {}
        for name, position in self._outputs.items():
            array = request.get_output_tensor(position).data
            if name in self._bf16:
                array = array.view(BF16.dtype)
            outputs[name] = array[:rows] if rows else array
        return outputs

    def _padded(self, inputs: dict[str, Array], rows: int) -> dict[str, Array]:
        if not self._pads_batches:
            raise InternalError(
                f"expected requests with batch size '{self._fixed_rows}', got '{rows}'... this error can be avoided by "
                "setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        return {name: with_rows(array, self._fixed_rows) for name, array in inputs.items()}


def _tensor(array: Array, is_bf16: bool) -> Any:
    # For 16-bit words the constructor needs the type as an argument, and with a type it makes no copy by itself.
    return openvino.Tensor(array.copy(), array.shape, openvino.Type.bf16) if is_bf16 else openvino.Tensor(array)


def _openvino_error(where: str, error: RuntimeError) -> InternalError:
    return InternalError(f"openvino error in {where} : {str(error).strip()}")


@contextmanager
def _errors_in(where: str) -> Iterator[None]:
    """A context for calls of OpenVINO: its errors become InternalErrors that say `where` they occurred."""
    try:
        yield
    except RuntimeError as error:
        raise _openvino_error(where, error) from error


# -- the model and its configuration ----------------------------------------------------------------------------------


def _io_tensors(ports: Sequence[Any], configured: Collection[str]) -> tuple[IOTensor, ...]:
    """The inputs or outputs of a model. A tensor with several names gets the one that is `configured`."""
    tensors = []
    for port in ports:
        name = next((name for name in sorted(port.get_names()) if name in configured), None) or port.get_any_name()
        shape, element_type = port.get_partial_shape(), port.get_element_type().get_type_name()
        dims = () if shape.rank.is_dynamic else tuple(dim.get_length() if dim.is_static else -1 for dim in shape)
        datatype = _NAME_OF.get(element_type)
        tensors.append(IOTensor(name, BY_NAME[datatype].config_name if datatype else element_type, dims))
    return tuple(tensors)


def _as_served(
    ports: Sequence[Any], specs: Mapping[str, TensorSpec], role: str, model: str, fixed_rows: int
) -> tuple[IOTensor, ...]:
    """The inputs or outputs with the configured datatypes, which requests use: OpenVINO converts from and to the
    model's own types. A first dimension of `fixed_rows` becomes -1."""
    tensors = []
    for tensor in _io_tensors(ports, specs):
        if tensor.name in specs:
            datatype = specs[tensor.name].datatype
            if datatype.name not in _TYPE_OF:
                raise InternalError(
                    f"unsupported datatype {datatype.config_name} for {role} '{tensor.name}' for model '{model}'"
                )
            if not tensor.dims:
                raise UnsupportedError(
                    f"model '{model}', tensor '{tensor.name}': the model gives it no dimensions; if that means any, "
                    "set the parameter 'RESHAPE_IO_LAYERS' to 'YES', and the configuration's are taken"
                )
            tensor = tensor._replace(data_type=datatype.config_name)
        if fixed_rows and tensor.dims[:1] == (fixed_rows,):
            tensor = tensor._replace(dims=(-1, *tensor.dims[1:]))
        tensors.append(tensor)
    return tuple(tensors)


def _shaped(model: Any, signature: Signature, settings: OpenvinoSettings) -> tuple[Any, int]:
    """The model with its inputs' shapes for serving, and the number of rows that every execution must have (0 = any).

    Raises InternalError if OpenVINO finds that the shapes do not suit the model.
    """
    if signature.max_batch_size == 0:
        return _reshaped(model, signature, settings, []), 0
    if not settings.keeps_batch_fixed:
        try:
            shaped = _reshaped(model, signature, settings, [-1])
        except InternalError:
            pass  # the model cannot have a dynamic batch size, so it gets a fixed one, as Triton gives every model
        else:
            outputs = _io_tensors(shaped.outputs, signature.outputs)
            if all(tensor.dims[:1] == (-1,) for tensor in outputs if tensor.name in signature.outputs):
                return shaped, 0
    return _reshaped(model, signature, settings, [signature.max_batch_size]), signature.max_batch_size


def _reshaped(model: Any, signature: Signature, settings: OpenvinoSettings, leading: list[int]) -> Any:
    shapes = {}
    for position, port in enumerate(model.inputs):
        shape = port.get_partial_shape()
        spec = next((signature.inputs[name] for name in port.get_names() if name in signature.inputs), None)
        if settings.reshapes_inputs and spec is not None:
            shapes[position] = openvino.PartialShape([*leading, *spec.model_dims])
        elif shape.rank.is_static and len(shape) >= len(leading):
            shapes[position] = openvino.PartialShape([*leading, *list(shape)[len(leading) :]])
    shaped = model.clone()
    with _errors_in("setting max batch size" if leading else "setting shape"):
        shaped.reshape(shapes)
    return shaped


def _converted(model: Any, signature: Signature) -> Any:
    """The model with the configured datatypes at its inputs and outputs."""
    steps = openvino.preprocess.PrePostProcessor(model)
    for end, specs in ((steps.input, signature.inputs), (steps.output, signature.outputs)):
        for spec in specs.values():
            end(spec.name).tensor().set_element_type(_TYPE_OF[spec.datatype.name])
    with _errors_in("setting precision"):
        return steps.build()
