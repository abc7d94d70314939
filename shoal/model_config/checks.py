"""Checks of a finished configuration: one small rule per subject.

A rule takes the configuration and yields a sentence for each fault; the first one is raised. The sentences are Triton's
where Triton has one; limits that Triton lacks are ours and say what to change. Pure.
"""

import math
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from shoal.datatypes import BY_CONFIG_NAME, MAX_DIM, MAX_TENSOR_BYTES, format_shape
from shoal.errors import InvalidArgumentError
from shoal.model_config import (
    determinism,
    ensemble,
    execution_timeout,
    latency_target,
    model_metrics,
    ragged_batching,
    recycling,
    scaling,
    sequences,
    shadow,
    shared_process,
    warmup,
)
from shoal.model_config.backends import disagreements
from shoal.model_config.messages import Config
from shoal.model_config.python_backends import runs_on
from shoal.model_config.response_cache import response_cache
from shoal.model_config.scaling import MAX_INSTANCES

#: The longest delay, an hour (ours).
MAX_MICROSECONDS = 3_600_000_000
#: The most dims (ours): with the batch dimension, the most that numpy 1 has.
MAX_DIMS = 31
MAX_TENSORS = 1024
_VARIABLE = -1

Rule = Callable[[Config], Iterator[str]]


def batch_size(config: Config) -> Iterator[str]:
    """Check max_batch_size."""
    if config["max_batch_size"] < 0:
        yield f"'max_batch_size' must be non-negative value for {config['name']}"


def file_names(config: Config) -> Iterator[str]:
    """Check that default_model_filename and cc_model_filenames name files inside a version directory."""
    named = [("default_model_filename", config["default_model_filename"])]
    named += [(f"cc_model_filenames['{key}']", path) for key, path in config["cc_model_filenames"].items()]
    for field, path in named:
        if path and not is_inside(path):
            yield (
                f"{field} '{path}' of model '{config['name']}' is outside the version directory; "
                "give a path relative to it, without '..'"
            )


def tensors(config: Config) -> Iterator[str]:
    """Check all inputs, then all outputs: names, datatypes, dims, reshape, format, optional."""
    name = config["name"]
    # A model.py that only calls other models may have neither inputs nor outputs. Model files declare theirs.
    may_have_none = runs_on(config) == "python"
    for field, label in (("input", "model input"), ("output", "model output")):
        listed = config[field]
        if not (listed or may_have_none):
            yield (
                f"model '{name}' has no '{field}' in its configuration; list every {field} with name, data_type and "
                "dims (only where auto-complete is on and the model tells them itself may the list be left out)"
            )
        if len(listed) > MAX_TENSORS:
            yield f"model '{name}' lists {len(listed)} entries of '{field}', at most {MAX_TENSORS} are allowed"
        for tensor in listed:
            for fault in _tensor(tensor, config["max_batch_size"], label):
                yield f"{fault} for {name}"
        for tensor_name, times in Counter(tensor["name"] for tensor in listed).items():
            if times > 1:
                yield f"{label} '{tensor_name}' is specified {times} times for {name}; give each its own name"
    for tensor in config["input"]:
        if tensor["format"] != "FORMAT_NONE" and len(tensor["dims"]) != 3:
            yield f"model input NHWC/NCHW require 3 dims for {name}"
        if tensor["optional"] and config["backend"] == "onnxruntime" and config["max_batch_size"] > 0:
            yield (
                f"model input '{tensor['name']}' can only be optional with max_batch_size 0 for {name}: "
                "ONNX Runtime's overridable initializers have no batch dimension"
            )


def _tensor(tensor: Config, max_batch_size: int, label: str) -> Iterator[str]:
    if not tensor["name"]:
        yield f"{label} must specify 'name'"
    label = f"{label} '{tensor['name']}'"
    datatype = BY_CONFIG_NAME.get(tensor["data_type"])
    if datatype is None:
        yield f"{label} must specify 'data_type'"
    yield from _dims(tensor["dims"], label)
    if "reshape" in tensor:
        yield from _reshape(tensor["dims"], tensor["reshape"]["shape"], max_batch_size, label)
    # A dim of -1 counts as 1, the least that is needed, and nothing is allocated. An element of BYTES takes at least
    # its length, a u32.
    itemsize = 4 if datatype is None else datatype.itemsize or 4
    nbytes = math.prod(map(abs, tensor["dims"])) * max(1, max_batch_size) * itemsize
    if nbytes > MAX_TENSOR_BYTES:
        yield (
            f"{label} with dims {format_shape(tensor['dims'])} takes {nbytes} bytes at max_batch_size "
            f"{max_batch_size}, more than the {MAX_TENSOR_BYTES} a tensor may have; lower one of the two"
        )


def _dims(dims: Sequence[int], label: str) -> Iterator[str]:
    if not dims:
        yield f"{label} must specify 'dims'"
    if len(dims) > MAX_DIMS:
        yield f"{label} has {len(dims)} dims, at most {MAX_DIMS} are allowed"
    for dim in dims:
        if dim < 1 and dim != _VARIABLE:
            yield f"{label} dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        if dim > MAX_DIM:
            yield f"{label} has dimension {dim}, must be at most {MAX_DIM}"


def _reshape(dims: Sequence[int], shape: Sequence[int], max_batch_size: int, label: str) -> Iterator[str]:
    if not shape and max_batch_size == 0:
        yield f"{label} cannot have empty reshape for non-batching model as scalar tensors are not supported"
    if len(shape) > MAX_DIMS:
        yield f"{label} has a reshape of {len(shape)} dims, at most {MAX_DIMS} are allowed"
    for dim in shape:
        if dim < 1 and dim != _VARIABLE:
            yield f"{label} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    counts, reshaped = _segments(dims), _segments(shape)
    if len(counts) != len(reshaped):
        yield f"{label} has different number of variable-size dimensions for dims and reshape"
    if counts != reshaped:
        yield f"{label} has different size for dims and reshape"


def _segments(shape: Sequence[int]) -> list[int]:
    """Element counts of the runs of fixed dims between the variable ones: [2,3,-1,4] gives [6,4]."""
    counts = [1]
    for dim in shape:
        if dim == _VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def labels(config: Config) -> Iterator[str]:
    """Check that label_filename names a file inside the model directory."""
    for output in config["output"]:
        path = output["label_filename"]
        if path and not is_inside(path):
            yield (
                f"label file path '{path}' for output '{output['name']}' in model '{config['name']}' "
                "is outside model directory"
            )


def warmup_files(config: Config) -> Iterator[str]:
    """Check that input_data_file, or a recording, names a file inside the model's directory `warmup`."""
    recording = warmup.recording(config)
    if recording is not None and not is_inside(recording):
        yield (
            f"the recording '{recording}' of {warmup.RECORDING} in model '{config['name']}' is outside directory "
            "'warmup' of the model"
        )
    for sample in config["model_warmup"]:
        for name, given in sample["inputs"].items():
            path = given.get(warmup.INPUT_DATA_FILE)
            if path is not None and not is_inside(path):
                yield (
                    f"warmup data file '{path}' for input '{name}' in model '{config['name']}' is outside directory "
                    "'warmup' of the model"
                )


def is_inside(path: str) -> bool:
    """Whether a relative `path` stays beneath the directory where it starts, links left aside."""
    plain = posixpath.normpath(path)
    return "\0" not in path and not plain.startswith("/") and plain.split("/")[0] not in (".", "..")


def preferred_sizes(config: Config) -> Iterator[str]:
    """Check preferred_batch_size of either batcher against max_batch_size, which auto-complete may have set."""
    oldest = config.get("sequence_batching", {}).get("oldest", {})
    for which, batching in (
        ("dynamic batching preferred size", config.get("dynamic_batching", {})),
        ("sequence batching preferred batch size", oldest),
    ):
        for size in batching.get("preferred_batch_size", ()):
            if size <= 0:
                yield f"{which} must be positive for {config['name']}"
            if size > config["max_batch_size"]:
                yield f"{which} must be <= max batch size for {config['name']}"


def delay_and_order(config: Config) -> Iterator[str]:
    """Check dynamic_batching, apart from preferred sizes and queue policies."""
    batching = config.get("dynamic_batching")
    if batching is None:
        return
    name, levels, default = config["name"], batching["priority_levels"], batching["default_priority_level"]
    yield from _too_long(name, "max_queue_delay_microseconds", batching["max_queue_delay_microseconds"])
    if levels > 0 and not 1 <= default <= levels:
        yield f"default priority level must be in range [1, {levels}] for {name}"
    if batching["preserve_ordering"] and levels > 1:
        yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"


def queue_policies(config: Config) -> Iterator[str]:
    """Check default_queue_policy and priority_queue_policy."""
    batching = config.get("dynamic_batching")
    if batching is None:
        return
    name, levels = config["name"], batching["priority_levels"]
    for level in batching["priority_queue_policy"]:
        if levels > 0 and not 1 <= int(level) <= levels:  # without levels the policies have no effect, as in Triton
            yield f"priority queue policy must have priority level in range [1, {levels}] for {name}"
    for policy in (batching.get("default_queue_policy"), *batching["priority_queue_policy"].values()):
        if policy is not None:
            yield from _too_long(name, "default_timeout_microseconds", policy["default_timeout_microseconds"])
            can_delay = policy["timeout_action"] == "DELAY" and policy["default_timeout_microseconds"] > 0
            if batching["preserve_ordering"] and can_delay:
                yield f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"


def sequence_delay(config: Config) -> Iterator[str]:
    """Check the delay of either strategy of sequence_batching."""
    for strategy in ("direct", "oldest"):
        delay_us = config.get("sequence_batching", {}).get(strategy, {}).get("max_queue_delay_microseconds", 0)
        yield from _too_long(config["name"], "max_queue_delay_microseconds", delay_us)


def sequence_files(config: Config) -> Iterator[str]:
    """Check that data_file of an initial state names a file inside the model's directory `initial_state`."""
    for state in sequences.states(config):
        for initial in state["initial_state"]:
            path = initial.get("data_file")
            if path is not None and not is_inside(path):
                yield (
                    f"data file '{path}' of the initial state for input '{state['input_name']}' in model "
                    f"'{config['name']}' is outside directory 'initial_state' of the model"
                )


def batch_tensors(config: Config) -> Iterator[str]:
    """Check batch_input and batch_output: inputs that the backend makes from a whole batch, and outputs that it splits
    by the shapes of an input."""
    inputs = {tensor["name"]: tensor for tensor in config["input"]}
    outputs = {tensor["name"]: tensor for tensor in config["output"]}
    for made in config["batch_input"]:
        yield from _sources(made, "batch input", inputs)
        if made["data_type"] not in ("TYPE_INT32", "TYPE_FP32"):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"
        for name in made["target_name"]:
            if name in inputs:  # Shoal's own check; Triton fails when it runs the model
                yield f"target input name '{name}' of a batch input is an input of clients, too, for {config['name']}"
    scattered: set[str] = set()
    for made in config["batch_output"]:
        yield from _sources(made, "batch output", inputs)
        for name in made["target_name"]:
            if name not in outputs:
                yield f"unknown target output name '{name}'"
            if name in scattered:
                yield f"target output name '{name}' can only be specified once"
            scattered.add(name)
            (source,) = made["source_input"]
            if len(outputs[name]["dims"]) > len(inputs[source]["dims"]):  # Triton would read beyond the input's shape
                yield f"target output '{name}' has more dims than source input '{source}' for {config['name']}"


def _sources(made: Config, what: str, inputs: dict[str, Config]) -> Iterator[str]:
    sources = made["source_input"]
    if len(sources) != 1:
        yield f"{what} kind '{made['kind']}' expects 1 source input, got {len(sources)}"
    for source in sources:
        if source not in inputs:
            yield f"unknown source input name '{source}'"
        if inputs[source]["optional"]:  # Shoal's own check
            yield f"source input '{source}' of a {what} cannot be optional"


def instance_groups(config: Config) -> Iterator[str]:
    """Check instance_group, as far as possible without knowing the server's GPUs."""
    num_instances = 0
    for group in config["instance_group"]:
        which = f"instance group {group['name']} of model {config['name']}"
        if group["count"] < 0:
            yield f"{which} has count {group['count']}, must be a positive number of instances"
        if group["kind"] in ("KIND_CPU", "KIND_MODEL") and group["gpus"]:
            yield f"{which} has kind {group['kind']} but specifies one or more GPUs"
        which += f" and platform {config['platform']}"
        if group["profile"] and config["platform"] != "tensorrt_plan":  # the missing blank is Triton's
            yield f"{which}specifies profile field which is only supported for TensorRT models"
        for profile in group["profile"]:
            if not (profile.isascii() and profile.isdigit()):
                yield (
                    f"{which} specifies invalid profile {profile}. "
                    "The field should contain the string representation of a non-negative integer."
                )
        # The count of a GPU group is per GPU.
        num_instances += max(1, group["count"]) * max(1, len(group["gpus"]))
    if num_instances > MAX_INSTANCES:
        yield (
            f"instance groups of model {config['name']} ask for {num_instances} instances, each of them a process; "
            f"lower 'count' to at most {MAX_INSTANCES} instances in all"
        )


def _too_long(name: str, field: str, microseconds: int) -> Iterator[str]:
    if microseconds > MAX_MICROSECONDS:
        yield f"{field} is {microseconds} for {name}, must be at most {MAX_MICROSECONDS} (one hour)"


#: Rules that need no auto-complete, and must hold before a process is started for the model.
_UNFINISHED: tuple[Rule, ...] = (
    disagreements, ensemble.faults, file_names, warmup_files, delay_and_order, queue_policies, instance_groups,
    sequences.faults, sequence_delay, sequence_files, execution_timeout.faults, latency_target.faults, recycling.faults,
    scaling.faults, model_metrics.faults, response_cache, shadow.faults, determinism.faults, ragged_batching.faults,
    shared_process.faults,
)  # fmt: skip
_FINISHED: tuple[Rule, ...] = (
    *_UNFINISHED, batch_size, tensors, labels, preferred_sizes, latency_target.faults_when_finished,
    determinism.faults_when_finished, ragged_batching.faults_when_finished,
    warmup.faults, warmup.recording_faults, batch_tensors,
)  # fmt: skip


def check_unfinished(config: Config) -> None:
    """Raise InvalidArgumentError with the first fault that auto-complete cannot mend."""
    _apply(_UNFINISHED, config)


def check(config: Config) -> None:
    """Raise InvalidArgumentError with the first fault of a finished configuration."""
    _apply(_FINISHED, config)


def _apply(rules: tuple[Rule, ...], config: Config) -> None:
    for rule in rules:
        for sentence in rule(config):
            raise InvalidArgumentError(sentence)
