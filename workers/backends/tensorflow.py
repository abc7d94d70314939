"""TensorFlow models: one session per instance, on the worker's own cores. The only file that imports TensorFlow.

SavedModels and frozen graphs are run in a session, as in Triton: a model runs TensorFlow's own operations only, no
Python and no Keras. Inputs are fed from the memory in which they have arrived, or copied if the model may keep them.
Outputs are copied once, into the block of the answers.
"""

import importlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Set before the import, so that TensorFlow does not log the processor's instructions in every worker.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
import tensorflow as tf

from shoal.datatypes import BF16, BY_NAME
from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config import files
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.signature import Signature, TensorSpec
from shoal.workers.backends import file_checks
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device
from shoal.workers.backends.tensorflow_options import TensorflowSettings, chosen_signature, tensorflow_settings
from shoal.workers.tensors import Array
from shoal.workers.warmup import run_zeros, smallest_inputs

_log = logging.getLogger(__name__)

# TensorFlow's types → Triton's datatypes; a type that is missing here has no Triton datatype.
_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "string": "BYTES", "bfloat16": "BF16",
}  # fmt: skip
#: The exceptions that a session raises: TensorFlow's, and Python's own for errors found before an operation is run.
_ERRORS = (tf.errors.OpError, RuntimeError, OSError, ValueError, TypeError)
_INIT_OPS_NBYTES = 1 << 20
_OPERATIONS: Any = importlib.import_module("tensorflow.python.framework.op_def_registry")
#: Stateful operations that keep no input after a run; the functions that they call are checked separately.
_KEEP_NOTHING = (
    "Assert", "Case", "HashTableV2", "If", "LookupTableFindV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
    "StatefulPartitionedCall", "VarHandleOp", "While",
)  # fmt: skip


class TensorflowBackend(BatchedBackend):
    """One TensorFlow session."""

    def __init__(self) -> None:
        # These fields are changed by describe, load and unload.
        self._session: Any = None
        self._graph_def: Any = None  # the graph as read; None once it is loaded
        self._run: Any = None
        self._names: dict[str, dict[str, str]] = {}  # "input", "output" → configured name → name in the graph
        self._tensors: dict[str, list[IOTensor]] = {}
        self._feeds: list[str] = []  # names of inputs, in the order in which `_run` takes them
        self._fetches: list[str] = []
        self._bf16: frozenset[str] = frozenset()  # inputs and outputs that travel as 16-bit words
        self._copies_inputs = False

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        """The inputs and outputs of the signature; none for a frozen graph, which does not name them. Raises
        InvalidArgumentError for tensors of rank 0, and the errors of `load` if the file cannot be read."""
        settings = tensorflow_settings(model, device)
        self._open(model, settings)
        if settings.is_graphdef:
            return ModelIO((), ())
        for tensor in (*self._tensors["input"], *self._tensors["output"]):
            if not tensor.dims:
                raise InvalidArgumentError(
                    f"unable to autofill for '{model.name}': the rank of model tensor '{tensor.name}' is 0 which is "
                    "not supported"
                )
        return ModelIO(tuple(self._tensors["input"]), tuple(self._tensors["output"]))

    def load(self, model: BackendModel, device: Device) -> None:
        """Open the session, and check the model's tensors against the configuration. Raises InvalidArgumentError if
        file and configuration disagree, UnsupportedError for an optional input or a GPU, UnavailableError without a
        file, InternalError with TensorFlow's text if the file cannot be read."""
        signature, settings = Signature.from_config(model.config), tensorflow_settings(model, device)
        file_checks.refuse_optional(signature, "TensorFlow")
        self._open(model, settings)
        inputs, outputs = self._tensors["input"], self._tensors["output"]
        if settings.is_graphdef:
            inputs = [tensor for tensor in inputs if tensor.name in signature.inputs]
        is_batched = signature.max_batch_size > 0
        file_checks.check(
            signature,
            ModelIO(
                tuple(_with_rank(inputs, signature.inputs, is_batched)),
                tuple(_with_rank(outputs, signature.outputs, is_batched)),
            ),
        )
        self._feeds, self._fetches = list(signature.inputs), list(signature.outputs)
        specs = (*signature.inputs.values(), *signature.outputs.values())
        self._bf16 = frozenset(spec.name for spec in specs if spec.datatype is BF16)
        fetches = [self._names["output"][name] for name in self._fetches]
        self._run = self._session.make_callable(fetches, [self._names["input"][name] for name in self._feeds])
        self._copies_inputs, self._graph_def = keeps_inputs(self._graph_def, fetches), None
        if not model.config["model_warmup"]:
            run_zeros(self.run, smallest_inputs(signature), model.instance_name)

    def unload(self) -> None:
        if self._session is not None:
            self._session.close()
        self._run = self._session = None

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs, in arrays that TensorFlow has made for this run. Raises InternalError with TensorFlow's text if
        the run fails."""
        arrays = [inputs[name].copy() if self._copies_inputs else inputs[name] for name in self._feeds]
        if self._bf16:
            bfloat16 = tf.bfloat16.as_numpy_dtype
            arrays = [
                array.view(bfloat16) if name in self._bf16 else array
                for name, array in zip(self._feeds, arrays, strict=True)
            ]
        try:
            results = self._run(*arrays)
        except _ERRORS as error:
            raise InternalError(_message(error)) from error
        outputs: dict[str, Array] = {}
        for name, array in zip(self._fetches, results, strict=True):
            outputs[name] = array.view(BF16.dtype) if name in self._bf16 else array
        return outputs

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self, model: BackendModel, settings: TensorflowSettings) -> None:
        if self._session is not None:
            return
        if not os.path.exists(model.file):
            raise UnavailableError(f"unable to find '{model.file}' for model instance '{model.instance_name}'")
        graph = tf.Graph()
        session = tf.compat.v1.Session(graph=graph, config=_session_config(settings))
        tf.get_logger().setLevel(logging.ERROR)  # hides TensorFlow's advice to load models in another way
        try:
            with graph.as_default():
                if settings.is_graphdef:
                    self._read_graph(model, settings, session)
                else:
                    self._read_saved_model(model, settings, session)
        except ShoalError:
            raise
        except _ERRORS as error:
            raise InternalError(f"unable to load model '{model.name}': {_message(error)}") from error
        self._session = session

    def _read_saved_model(self, model: BackendModel, settings: TensorflowSettings, session: Any) -> None:
        meta_graph = tf.compat.v1.saved_model.load(session, [settings.graph_tag], model.file)
        name = chosen_signature(meta_graph.signature_def, settings, model.name)
        if name != settings.signature_def:
            _log.warning(
                "model '%s' has no signature '%s', its signature '%s' is served",
                model.name,
                settings.signature_def,
                name,
            )
        self._graph_def, signature = meta_graph.graph_def, meta_graph.signature_def[name]
        for role, infos in (("input", signature.inputs), ("output", signature.outputs)):
            self._names[role] = {key: info.name for key, info in sorted(infos.items())}
            self._tensors[role] = [
                _io_tensor(key, info.dtype, tf.TensorShape(info.tensor_shape)) for key, info in sorted(infos.items())
            ]

    def _read_graph(self, model: BackendModel, settings: TensorflowSettings, session: Any) -> None:
        definition = tf.compat.v1.GraphDef.FromString(Path(model.file).read_bytes())
        if not definition.node:
            raise InternalError(f"model {model.name} has an empty network")
        self._graph_def = definition
        tf.graph_util.import_graph_def(definition, name="")
        operations = session.graph.get_operations()
        placeholders = [operation for operation in operations if operation.type.startswith("Placeholder")]
        for role, nodes in (("input", placeholders), ("output", operations)):
            found = [operation.outputs[0] for operation in nodes if operation.outputs]
            self._names[role] = {tensor.op.name: tensor.name for tensor in found}
            self._tensors[role] = [_io_tensor(tensor.op.name, tensor.dtype, tensor.shape) for tensor in found]
        if settings.init_ops_file:
            session.run(_init_ops(model, settings.init_ops_file))


def keeps_inputs(graph_def: Any, fetches: Iterable[str]) -> bool:
    """Whether the operations that these outputs need may keep a reference to an input after the run, as an assignment
    to a variable does.

    An assignment makes no copy: the variable would lie in a client's block, which changes, and which must not be
    written. Only operations that the outputs need are checked, since every SavedModel has assignments that restore it.
    Copying the inputs of every model would cost too much: a copy of 4 MiB took 2 ms, in a model whose run took 1 ms.
    """
    nodes = {node.name: node for node in graph_def.node}
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    waiting = [nodes.pop(name) for name in {fetch.partition(":")[0] for fetch in fetches}]
    while waiting:
        node = waiting.pop()
        operation = _OPERATIONS.get(node.op)
        if node.op not in _KEEP_NOTHING and (operation is None or operation.is_stateful):
            return True
        for name in node.input:
            source = nodes.pop(name.removeprefix("^").partition(":")[0], None)
            waiting += [] if source is None else [source]
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                waiting += functions.pop(called.name, ())
    return False


def _session_config(settings: TensorflowSettings) -> Any:
    v1 = tf.compat.v1
    return v1.ConfigProto(
        intra_op_parallelism_threads=settings.num_intra_threads,
        inter_op_parallelism_threads=settings.num_inter_threads,
        use_per_session_threads=settings.uses_per_session_threads,
        allow_soft_placement=settings.allows_soft_placement,
        device_count={"GPU": 0},
        graph_options=v1.GraphOptions(optimizer_options=v1.OptimizerOptions(global_jit_level=settings.jit_level)),
    )


def _io_tensor(name: str, dtype: Any, shape: Any) -> IOTensor:
    type_name = tf.as_dtype(dtype).base_dtype.name
    datatype = _TYPES.get(type_name)
    dims = () if shape.rank is None else tuple(-1 if dim is None else dim for dim in shape.as_list())
    return IOTensor(name, BY_NAME[datatype].config_name if datatype else type_name, dims)


def _with_rank(tensors: Iterable[IOTensor], specs: dict[str, TensorSpec], is_batched: bool) -> Sequence[IOTensor]:
    """The `tensors`; one without dimensions in the file gets those of the configuration, as in Triton."""
    result = []
    for tensor in tensors:
        spec = specs.get(tensor.name)
        if spec is not None and not tensor.dims:
            dims = spec.model_dims
            tensor = tensor._replace(dims=(-1, *dims) if is_batched else dims)
        result.append(tensor)
    return result


def _init_ops(model: BackendModel, name: str) -> list[str]:
    """The operations that initialise a graph, listed in a file of the version's or the model's directory."""
    for directory in (Path(model.version_dir), Path(model.version_dir).parent):
        try:
            content = files.read(directory / name, _INIT_OPS_NBYTES)
        except FileNotFoundError:
            continue
        operations = json.loads(content).get("init_ops")
        if isinstance(operations, list) and all(isinstance(operation, str) for operation in operations):
            return operations
        raise InvalidArgumentError(f"model '{model.name}': '{name}' must have a list 'init_ops' of names of operations")
    raise UnavailableError(f"unable to find '{name}' for model instance '{model.instance_name}'")


def _message(error: Exception) -> str:
    """An error's text, without TensorFlow's stack trace of the code that once built the model."""
    return str(getattr(error, "message", None) or error).split("\n\nOriginal stack trace")[0].strip()
