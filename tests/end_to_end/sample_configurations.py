"""The configuration of every sample model as tritonserver 2.51 printed it: what all have in common once, and in a
table what each has of its own. The order of fields is Triton's, too."""

from collections.abc import Sequence
from typing import Any

Fields = dict[str, Any]

BACKENDS: dict[str, tuple[str, str]] = {
    "onnxruntime": ("onnxruntime_onnx", "model.onnx"),
    "python": ("", "model.py"),
    "embedding": ("", ""),
    "identity": ("", ""),
}


def an_input(name: str, datatype: str, *dims: int) -> Fields:
    tensor = {"name": name, "data_type": f"TYPE_{datatype}", "format": "FORMAT_NONE", "dims": list(dims)}
    flags = ("is_shape_tensor", "allow_ragged_batch", "optional", "is_non_linear_format_io")
    return tensor | dict.fromkeys(flags, False)


def an_output(name: str, datatype: str, *dims: int, labels: str = "", **reshape: Fields) -> Fields:
    tensor = {"name": name, "data_type": f"TYPE_{datatype}", "dims": list(dims), **reshape, "label_filename": labels}
    return tensor | {"is_shape_tensor": False, "is_non_linear_format_io": False}


def dynamic_batching(preferred: int, delay_us: int = 0) -> Fields:
    batching = {
        "preferred_batch_size": [preferred],
        "max_queue_delay_microseconds": delay_us,
        "preserve_ordering": False,
    }
    levels = {"priority_levels": 0, "default_priority_level": 0, "priority_queue_policy": {}}
    return {"dynamic_batching": batching | levels}


def control(name: str, datatype: str = "") -> Fields:
    """A control tensor of two numbers, or of a datatype."""
    values = {"int32_false_true": [] if datatype else [0, 1], "fp32_false_true": [], "bool_false_true": []}
    kind = {"kind": f"CONTROL_SEQUENCE_{name}", **values, "data_type": f"TYPE_{datatype or 'INVALID'}"}
    return {"name": name, "control": [kind]}


def sequence_batching(*controls: Fields, **strategy: Fields) -> Fields:
    idle = {"max_sequence_idle_microseconds": 10_000_000}
    rest = {"control_input": list(controls), "state": [], "iterative_sequence": False}
    return {"sequence_batching": strategy | idle | rest}


def step(model: str, inputs: Sequence[str], outputs: Sequence[str]) -> Fields:
    maps = {"input_map": {name: name for name in inputs}, "output_map": {name: name for name in outputs}}
    return {"model_name": model, "model_version": -1, **maps, "model_namespace": ""}


def configuration(
    name: str,
    backend: str,
    rows: int,
    inputs: list[Fields],
    outputs: list[Fields],
    scheduling: Fields | None = None,
    decoupled: bool | None = None,
) -> Fields:
    """The whole configuration of a model of at most `rows`; without a transaction policy where `decoupled` is None."""
    platform, filename = BACKENDS.get(backend, (backend, ""))
    is_ensemble = backend not in BACKENDS
    optimization = {
        "priority": "PRIORITY_DEFAULT",
        "input_pinned_memory": {"enable": True},
        "output_pinned_memory": {"enable": True},
        "gather_kernel_buffer_threshold": 0,
        "eager_batching": False,
    }
    lists: Fields = {"gpus": [], "secondary_devices": [], "profile": []}
    group = {"name": f"{name}_0", "kind": "KIND_CPU", "count": 1, **lists, "passive": False, "host_policy": ""}
    return {
        "name": name,
        "platform": platform,
        "backend": "" if is_ensemble else backend,
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": rows,
        "input": inputs,
        "output": outputs,
        "batch_input": [],
        "batch_output": [],
        **({} if is_ensemble else {"optimization": optimization}),
        **(scheduling or {}),
        "instance_group": [] if is_ensemble else [group],
        "default_model_filename": filename,
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        **({} if decoupled is None else {"model_transaction_policy": {"decoupled": decoupled}}),
    }


def pairs(datatype: str, dim: int) -> tuple[list[Fields], list[Fields]]:
    """Two inputs and two outputs that are alike."""
    return (
        [an_input(f"INPUT{number}", datatype, dim) for number in range(2)],
        [an_output(f"OUTPUT{number}", datatype, dim) for number in range(2)],
    )


ACCUMULATOR = [an_input("INPUT", "INT32", 1)], [an_output("OUTPUT", "INT32", 1)]
REPEATER = (
    [an_input("IN", "INT32", -1), an_input("DELAY", "UINT32", -1), an_input("WAIT", "UINT32", 1)],
    [an_output("OUT", "INT32", 1), an_output("IDX", "UINT32", 1)],
)
CLASSIFIER = [an_input("text", "STRING", 1)], [an_output("label", "STRING", 1), an_output("probability", "FP32", 1)]
OLDEST = {
    "max_candidate_sequences": 1024,
    "preferred_batch_size": [8],
    "max_queue_delay_microseconds": 0,
    "preserve_ordering": False,
}
STEPS = [
    step("tokenizer", ["text"], ["attention_mask", "input_ids"]),
    step("encoder", ["attention_mask", "input_ids"], ["logits"]),
    step("postprocessing", ["logits"], ["label", "probability"]),
]

CONFIGURATIONS = [
    configuration("add_sub", "python", 0, *pairs("FP32", 4)),
    configuration(
        "digits",
        "onnxruntime",
        64,
        [an_input("image", "FP32", 64)],
        [
            an_output("label", "INT64", 1, reshape={"shape": []}),
            an_output("probabilities", "FP32", 10, labels="labels.txt"),
        ],
        dynamic_batching(64),
    ),
    configuration(
        "embedding_table", "embedding", 0, [an_input("ids", "INT64", -1)], [an_output("vectors", "FP32", -1, 64)]
    ),
    configuration(
        "encoder",
        "onnxruntime",
        64,
        [an_input("input_ids", "INT64", -1), an_input("attention_mask", "INT64", -1)],
        [an_output("embedding", "FP32", 64), an_output("logits", "FP32", 5)],
        dynamic_batching(64),
    ),
    configuration(
        "mlp",
        "onnxruntime",
        32,
        [an_input("features", "FP32", 512)],
        [an_output("scores", "FP32", 10)],
        dynamic_batching(32, delay_us=5000),
    ),
    configuration(
        "postprocessing",
        "python",
        64,
        [an_input("logits", "FP32", 5)],
        [*CLASSIFIER[1], an_output("probabilities", "FP32", 5, labels="labels.txt")],
        dynamic_batching(64),
    ),
    configuration("repeat", "python", 0, *REPEATER, decoupled=True),
    configuration("repeat_int32", "python", 0, *REPEATER, decoupled=True),
    configuration("simple", "onnxruntime", 8, *pairs("INT32", 16)),
    configuration(
        "simple_dyna_sequence",
        "onnxruntime",
        8,
        *ACCUMULATOR,
        sequence_batching(
            control("START"), control("END"), control("READY"), control("CORRID", "UINT64"), oldest=OLDEST
        ),
    ),
    configuration(
        "simple_identity", "identity", 8, [an_input("INPUT0", "STRING", -1)], [an_output("OUTPUT0", "STRING", -1)]
    ),
    configuration("simple_int8", "onnxruntime", 8, *pairs("INT8", 16)),
    configuration(
        "simple_sequence",
        "onnxruntime",
        8,
        *ACCUMULATOR,
        sequence_batching(control("START"), control("READY")),
    ),
    configuration("simple_string", "onnxruntime", 8, *pairs("STRING", 16)),
    configuration(
        "simple_string_dyna_sequence",
        "python",
        8,
        *ACCUMULATOR,
        sequence_batching(control("START"), control("END"), control("CORRID", "STRING"), oldest=OLDEST),
    ),
    configuration("text_classification", "python", 64, *CLASSIFIER),
    configuration(
        "text_ensemble",
        "ensemble",
        64,
        *CLASSIFIER,
        {"ensemble_scheduling": {"step": STEPS, "max_inflight_requests": 0}},
        decoupled=False,
    ),
    configuration(
        "tokenizer",
        "python",
        64,
        [an_input("text", "STRING", 1)],
        [an_output("input_ids", "INT64", -1), an_output("attention_mask", "INT64", -1)],
        dynamic_batching(64),
    ),
]
