"""Auto-complete: fields that a configuration leaves open are filled in from the model's file or its model.py.

Pure: the worker that first reads the file reports a ModelIO, and the supervisor completes the configuration from it.
Only max_batch_size, input, output, the scheduling choice and, for a model.py, the transaction policy may change. A
configured tensor, scheduler or policy is never overwritten; a model.py may raise max_batch_size.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.model_config import messages, sequences
from shoal.model_config.messages import Config
from shoal.model_config.python_backends import runs_on

#: Triton's default for `--backend-config=onnxruntime,default-max-batch-size=N`.
DEFAULT_MAX_BATCH_SIZE = 4

#: Backends whose files declare inputs and outputs with their shapes.
_DECLARING = frozenset({"fil", "onnxruntime", "openvino", "tensorflow", "tensorrt"})
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


class IOTensor(NamedTuple):
    """An input or output as declared by the model file."""

    name: str
    data_type: str  # "TYPE_FP32"
    dims: tuple[int, ...]  # with the batch dimension; -1: dynamic, (): a scalar


class ModelIO(NamedTuple):
    """All inputs and outputs of a model file, in the file's order; or the configuration as completed by a model.py."""

    inputs: tuple[IOTensor, ...]
    outputs: tuple[IOTensor, ...]
    completed: Config | None = None
    fills_max_batch_size: bool = True  # False: the file does not say whether its first dimensions are a batch


def needs_autocomplete(config: Config) -> bool:
    """Whether a worker must read the model's file, or call its auto_complete_config, before the configuration can be
    finished."""
    if config["backend"] in _DECLARING:
        return not (config["input"] and config["output"])
    # Whether it is the model's own or its backend's model.py, its auto_complete_config is always called.
    return bool(config["backend"]) and runs_on(config) == "python"


def complete(config: Config, model_io: ModelIO, default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE) -> Config:
    """`config` with open fields filled in from `model_io`. Raises InvalidArgumentError if max_batch_size is set and the
    file cannot batch, or if a model.py has set a field of a wrong type."""
    if model_io.completed is not None:
        return complete_python(config, model_io.completed)
    return complete_from_file(config, model_io, default_max_batch_size)


def complete_python(config: Config, completed: Config) -> Config:
    """`config` with the fields that an auto_complete_config may set, taken from `completed`. Configured tensors that
    `completed` does not list are dropped.

    Raises InvalidArgumentError for a field of a wrong type: it comes from a user's code.
    """
    name, max_batch_size = config["name"], completed.get("max_batch_size", 0)
    if type(max_batch_size) is not int:
        raise InvalidArgumentError(
            f"auto_complete_config of model '{name}' has set max_batch_size to {max_batch_size!r}, must be a number"
        )
    result = {**config, "max_batch_size": max_batch_size}
    for role, form in (("input", messages.model_input), ("output", messages.model_output)):
        configured = {tensor["name"]: tensor for tensor in config[role]}
        result[role] = [
            _filled(configured[tensor["name"]], tensor)
            if tensor["name"] in configured
            else {**form(tensor["name"], tensor["data_type"], tensor["dims"]), **tensor}
            for tensor in _checked_tensors(name, role, completed.get(role))
        ]
    if "dynamic_batching" in completed and not any(scheduler in config for scheduler in _SCHEDULERS):
        result["dynamic_batching"] = messages.dynamic_batching()
    policy = completed.get("model_transaction_policy")
    if isinstance(policy, dict) and "model_transaction_policy" not in config:
        result["model_transaction_policy"] = {"decoupled": policy.get("decoupled") is True}
    return result


def _filled(configured: Config, tensor: Config) -> Config:
    """A tensor of the configuration, with the datatype and the dims of `tensor` where these are left open."""
    is_open = configured["data_type"] == "TYPE_INVALID"
    data_type = tensor["data_type"] if is_open else configured["data_type"]
    return {**configured, "data_type": data_type, "dims": configured["dims"] or tensor["dims"]}


def _checked_tensors(name: str, role: str, tensors: Any) -> list[Config]:
    is_list = isinstance(tensors, list)
    for tensor in tensors if is_list else [tensors]:
        if not (
            is_list
            and isinstance(tensor, dict)
            and type(tensor.get("name")) is str
            and type(tensor.get("data_type")) is str
            and isinstance(tensor.get("dims"), list)
            and all(type(dim) is int for dim in tensor["dims"])
            and type(tensor.get("optional", False)) is bool
        ):
            raise InvalidArgumentError(
                f"auto_complete_config of model '{name}' has set {role} to {tensor!r}, must be a list of tensors with "
                "'name', 'data_type' and 'dims', a list of numbers"
            )
    return list(tensors)


def complete_from_file(
    config: Config, model_io: ModelIO, default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
) -> Config:
    """`config` with open fields filled in from `model_io`; unchanged where `config` lists inputs and outputs.

    Raises InvalidArgumentError where max_batch_size is set and the model cannot batch.
    """
    if not needs_autocomplete(config):
        return config
    max_batch_size: int = config["max_batch_size"]
    if all(tensor.dims[:1] == (-1,) for tensor in (*model_io.inputs, *model_io.outputs)):
        if model_io.fills_max_batch_size:
            max_batch_size = max_batch_size or max(0, default_max_batch_size)
    elif max_batch_size > 0:
        raise InvalidArgumentError(
            f"autofill failed for model '{config['name']}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    # Sequence controls and states are added by the server, so they are not among the configuration's inputs and
    # outputs.
    added = {name for name, _, _, _ in sequences.controls(config)}
    added.update(state[field] for state in sequences.states(config) for field in ("input_name", "output_name"))
    inputs, outputs = (
        [each for each in some if each.name not in added] for some in (model_io.inputs, model_io.outputs)
    )
    completed = {
        **config,
        "max_batch_size": max_batch_size,
        "input": config["input"] or [_tensor(messages.model_input, each, max_batch_size) for each in inputs],
        "output": config["output"] or [_tensor(messages.model_output, each, max_batch_size) for each in outputs],
    }
    if max_batch_size > 1 and not any(scheduler in config for scheduler in _SCHEDULERS):
        completed["dynamic_batching"] = messages.dynamic_batching()
    return completed


def _tensor(form: Callable[[str, str, Sequence[int]], Config], tensor: IOTensor, max_batch_size: int) -> Config:
    dims = tensor.dims[1:] if max_batch_size > 0 else tensor.dims
    if dims:
        return form(tensor.name, tensor.data_type, dims)
    # dims must not be empty. With batching a scalar is [1] reshaped to []; without, the backend itself takes [1] for a
    # tensor of rank 0, since an empty reshape is not allowed there.
    scalar = form(tensor.name, tensor.data_type, (1,))
    return {**scalar, "reshape": {"shape": []}} if max_batch_size > 0 else scalar
