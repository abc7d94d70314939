"""The settings of TensorFlow in config.pbtxt and --backend-config, read into one value and checked.

Pure: it knows the names of Triton's parameters, and does not import TensorFlow. Runs in a worker.
MAX_SESSION_SHARE_COUNT is checked and has no effect: each instance is a process with a session of its own.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.workers.backends import parameters
from shoal.workers.backends.backend import BackendModel, Device

DEFAULT_TAG, DEFAULT_SIGNATURE = "serve", "serving_default"
#: Signatures of a SavedModel that are not for inference, but for initialization and training.
_INTERNAL_SIGNATURES = ("__saved_model_init_op", "__saved_model_train_op")
_FLAGS = {**dict.fromkeys(("true", "on", "1", "yes"), True), **dict.fromkeys(("false", "off", "0", "no"), False)}


@dataclass(frozen=True, slots=True)
class TensorflowSettings:
    """The options of a model's TensorFlow session."""

    is_graphdef: bool  # True: a frozen graph in a file; False: a SavedModel
    num_intra_threads: int
    num_inter_threads: int
    uses_per_session_threads: bool
    graph_tag: str
    signature_def: str
    init_ops_file: str  # a file that lists operations to initialise a frozen graph; "" = none
    jit_level: int  # optimization.graph.level: -1 = XLA off, 0 = TensorFlow's default, 1 and 2 = on
    allows_soft_placement: bool  # whether an operation for a device that does not exist may run on another


def tensorflow_settings(model: BackendModel, device: Device) -> TensorflowSettings:
    """All options of the session of `model`. Raises InvalidArgumentError for an invalid value, UnsupportedError for
    a GPU."""
    if not _number(model, "MAX_SESSION_SHARE_COUNT", 1):
        raise _invalid(model, "MAX_SESSION_SHARE_COUNT", "positive number", "0")
    if device.kind != "KIND_CPU":
        raise UnsupportedError(f"unable to load model '{model.name}', TensorFlow models are served on KIND_CPU only")
    init_ops_file = model.parameter("TF_INIT_OPS_FILE") or ""
    if "/" in init_ops_file:
        raise _invalid(
            model, "TF_INIT_OPS_FILE", "name of a file in the model's directory or its version's", init_ops_file
        )
    optimization = model.config.get("optimization", {})
    if optimization.get("execution_accelerators", {}).get("cpu_execution_accelerator"):
        raise InvalidArgumentError("CPU Execution Accelerator is not supported in TensorFlow backend")
    return TensorflowSettings(
        is_graphdef=model.config.get("platform") == "tensorflow_graphdef",
        num_intra_threads=_number(model, "TF_NUM_INTRA_THREADS", 0) or len(device.cores),
        num_inter_threads=_number(model, "TF_NUM_INTER_THREADS", 0) or len(device.cores),
        uses_per_session_threads=_flag(model, "TF_USE_PER_SESSION_THREADS", model.parameter),
        graph_tag=model.parameter("TF_GRAPH_TAG") or DEFAULT_TAG,
        signature_def=model.parameter("TF_SIGNATURE_DEF") or DEFAULT_SIGNATURE,
        init_ops_file=init_ops_file,
        jit_level=max(-1, min(2, optimization.get("graph", {}).get("level", 0))),
        allows_soft_placement=_flag(model, "allow-soft-placement", model.backend_config.get, default=True),
    )


def chosen_signature(signatures: Collection[str], settings: TensorflowSettings, model: str) -> str:
    """The configured signature or, as in Triton, the first other one, by name, that does inference. Raises
    InternalError if there is none."""
    if settings.signature_def in signatures:
        return settings.signature_def
    for name in sorted(signatures):
        if name not in _INTERNAL_SIGNATURES:
            return name
    raise InternalError(f"unable to load model '{model}', expected '{settings.signature_def}' signature")


def _number(model: BackendModel, key: str, default: int) -> int:
    value = model.parameter(key)
    return parameters.whole_number(model, key, value, "non-negative number", _invalid) if value else default


def _flag(model: BackendModel, key: str, get: Callable[[str], str | None], *, default: bool = False) -> bool:
    value = (get(key) or "").lower()
    return parameters.flag(model, key, value, _FLAGS, "'true' or 'false'", _invalid, default=default)


def _invalid(model: BackendModel, key: str, expected: str, value: str) -> InvalidArgumentError:
    del value
    return InvalidArgumentError(f"parameter '{key}' must be {expected} for TensorFlow model '{model.name}'")
