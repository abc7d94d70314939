"""Parts of a ModelConfig in their JSON form, for code that adds one without protobuf.

A configuration is a plain dict in the form of Triton's JSON: every scalar, enum, repeated and map field is present even
at its default, a sub-message only where it is set. Pure; a test compares these forms with the real messages.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

#: A ModelConfig, or a message inside one, in its JSON form.
Config: TypeAlias = dict[str, Any]

#: The fields of ModelConfig and of its optimization, in Triton's order.
FIELDS = (
    "name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input", "output", "batch_input",
    "batch_output", "optimization", "dynamic_batching", "sequence_batching", "ensemble_scheduling", "instance_group",
    "default_model_filename", "cc_model_filenames", "metric_tags", "parameters", "model_warmup", "model_operations",
    "model_transaction_policy", "model_repository_agents", "response_cache", "model_metrics",
)  # fmt: skip
OPTIMIZATION_FIELDS = (
    "graph", "priority", "cuda", "execution_accelerators", "input_pinned_memory", "output_pinned_memory",
    "gather_kernel_buffer_threshold", "eager_batching",
)  # fmt: skip


def in_order(config: Config) -> Config:
    """`config` with its fields, and those of its optimization, in the messages' order."""
    ordered = {field: config[field] for field in FIELDS if field in config}
    if "optimization" in config:
        given = config["optimization"]
        ordered["optimization"] = {field: given[field] for field in OPTIMIZATION_FIELDS if field in given}
    return ordered


def model_input(name: str, data_type: str, dims: Sequence[int]) -> Config:
    """A ModelInput of which only these three fields are set; `dims` is without the batch dimension."""
    return {
        "name": name,
        "data_type": data_type,
        "format": "FORMAT_NONE",
        "dims": list(dims),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }


def model_output(name: str, data_type: str, dims: Sequence[int]) -> Config:
    """A ModelOutput of which only these three fields are set; `dims` is without the batch dimension."""
    return {
        "name": name,
        "data_type": data_type,
        "dims": list(dims),
        "label_filename": "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def instance_group(name: str) -> Config:
    """A ModelInstanceGroup with nothing but its name: KIND_AUTO, no count yet."""
    return {
        "name": name,
        "kind": "KIND_AUTO",
        "count": 0,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


def dynamic_batching() -> Config:
    """A `dynamic_batching {}`: empty, but its presence turns batching on."""
    return {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }


def optimization() -> Config:
    """An `optimization {}` with its defaults."""
    return {"priority": "PRIORITY_DEFAULT", "gather_kernel_buffer_threshold": 0, "eager_batching": False}
