"""Features of Triton's configuration that this version lacks: refused by the field's name, never ignored.

One table has, for each such field, its path, when its value asks for the feature, and advice; the row is removed when
the feature is added. A second table has the fields that change no answer, and why. All others take effect: a test
compares tables and effects with all fields of Triton's messages. Pure.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.backends import RUNTIMES, did_you_mean, kinds, unsupported_kind
from shoal.model_config.ensemble import is_ensemble
from shoal.model_config.messages import Config

#: The built-in backends, in the order in which users see their names.
BACKENDS = (
    "embedding", "fil", "identity", "onnxruntime", "openvino", "python", "pytorch", "tensorflow", "tensorrt",
    "torchserve",
)  # fmt: skip


class Unsupported(NamedTuple):
    """A field, by its path (`[]` stands for each element), and which of its values ask for a missing feature."""

    path: str
    asks: Callable[[Any], bool]
    reason: str
    but_for: tuple[str, ...] = ()  # backends that have the feature


def _is_set(value: Any) -> bool:
    """Whether a value is set; an empty sub-message is."""
    return isinstance(value, dict) or bool(value)


_NO_GROWING = "a state is as large as the model makes it; remove the field"
_NO_RAGGED = (
    "this backend gets no requests of different shapes in one batch; remove the field, they will run one by one"
)
_NO_GENERATED = "only ONNX and PyTorch models get inputs and outputs made from the batch itself"
_TENSORRT_ONLY = "shape tensors are only supported for TensorRT platform"
_LINEAR_ONLY = "Non-linear IO format is only supported for the TensorRT platform"
_NO_CUSTOM_CODE = "libraries of C or C++ code are not loaded"
_NO_CUSTOM_OPERATORS = "only the backend 'onnxruntime' loads libraries of operators; remove the field"

FEATURES = (
    Unsupported("ensemble_scheduling.step[].model_namespace", bool, "Triton reserves it for itself; remove the field"),
    Unsupported("sequence_batching.state[].use_growable_memory", bool, _NO_GROWING),
    Unsupported(
        "input[].allow_ragged_batch", bool, _NO_RAGGED, ("embedding", "identity", "onnxruntime", "python", "pytorch")
    ),
    Unsupported("input[].is_shape_tensor", bool, _TENSORRT_ONLY, ("tensorrt",)),
    Unsupported("output[].is_shape_tensor", bool, _TENSORRT_ONLY, ("tensorrt",)),
    Unsupported("input[].is_non_linear_format_io", bool, _LINEAR_ONLY),
    Unsupported("output[].is_non_linear_format_io", bool, _LINEAR_ONLY),
    Unsupported("batch_input", bool, _NO_GENERATED, ("onnxruntime", "pytorch")),
    Unsupported("batch_output", bool, _NO_GENERATED, ("onnxruntime", "pytorch")),
    Unsupported("instance_group[].passive", bool, "every instance serves requests; remove the group"),
    Unsupported("instance_group[].secondary_devices", bool, "no backend uses a second device; remove the field"),
    Unsupported("model_operations.op_library_filename", bool, _NO_CUSTOM_OPERATORS, ("onnxruntime",)),
    Unsupported("parameters.TRITON_BATCH_STRATEGY_PATH", _is_set, _NO_CUSTOM_CODE),
    Unsupported("model_repository_agents.agents", bool, "no agent prepares a model; remove the field"),
)  # fmt: skip


_GPU_HINT = "a hint that makes work on a GPU faster; results are the same without it"

#: Fields that are accepted without effect: their path, which covers all fields beneath, and why that is harmless.
HARMLESS = {
    "input[].format": "it tells people how an image is laid out; Triton computes nothing from it either",
    "optimization.priority": "a hint; instances are processes of their own, which the kernel treats alike",
    "optimization.cuda": _GPU_HINT,
    "optimization.input_pinned_memory": _GPU_HINT,
    "optimization.output_pinned_memory": _GPU_HINT,
    "optimization.gather_kernel_buffer_threshold": _GPU_HINT,
    "optimization.eager_batching": "a hint; a batch is gathered when it is executed",
    "sequence_batching.state[].use_same_buffer_for_input_output": "a hint; the model sees the same values",
    "sequence_batching.oldest.preserve_ordering": "an instance has one batch at a time, so responses are in order",
}


def check_support(config: Config, python_backend: Path | None = None) -> None:
    """Raise UnsupportedError for the first feature, backend or runtime of `config` that this server lacks.

    An unknown backend raises InvalidArgumentError, as in Triton. `python_backend` is the model.py of a backend that is
    not built in (python_backends.py).
    """
    name, runtime = config["name"], config["runtime"]
    backend = config["backend"] or config["platform"]
    for feature in FEATURES:
        if backend not in feature.but_for and any(feature.asks(value) for value in _values(config, feature.path)):
            raise UnsupportedError(f"model '{name}' sets '{feature.path}', which is not supported: {feature.reason}")
    if is_ensemble(config):
        return
    if backend not in BACKENDS and python_backend is None:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{backend}', try specifying runtime on the model "
            f"configuration. For model '{name}' there are: {', '.join(BACKENDS)}{did_you_mean(backend, BACKENDS)}"
        )
    for group in config["instance_group"]:
        if group["kind"] not in ("KIND_AUTO", *kinds(backend)) and "KIND_CPU" not in kinds(backend):
            raise unsupported_kind(config, group)
    runtimes = {"", f"libtriton_{backend}.so", python_backend and python_backend.name, *RUNTIMES.get(backend, ())}
    if runtime not in runtimes:
        raise UnsupportedError(
            f"unable to find backend library '{runtime}' for model '{name}': the backend '{backend}' is built in; "
            "remove 'runtime' from its configuration"
        )


def _values(node: Any, path: str) -> Iterator[Any]:
    """The values at `path` beneath `node`; none where a sub-message on the path is not set."""
    head, _, rest = path.partition(".")
    field = head.removesuffix("[]")
    if field not in node:
        return
    children = node[field] if head.endswith("[]") else (node[field],)
    for child in children:
        if rest:
            yield from _values(child, rest)
        else:
            yield child
