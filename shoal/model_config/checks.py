"""Checks of a finished configuration, apart from its tensors (`tensor_checks`): one small rule per subject.

A rule takes the configuration and yields a sentence for each fault; the first one is raised. The sentences are Triton's
where Triton has one; limits that Triton lacks are ours and say what to change. Pure.
"""

import posixpath
from collections.abc import Callable, Iterator

from shoal.errors import InvalidArgumentError
from shoal.model_config import (
    batch_io,
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
from shoal.model_config.response_cache import response_cache
from shoal.model_config.scaling import MAX_INSTANCES
from shoal.model_config.tensor_checks import tensors

#: The longest delay, an hour (ours).
MAX_MICROSECONDS = 3_600_000_000

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
    warmup.faults, warmup.recording_faults, batch_io.faults,
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
