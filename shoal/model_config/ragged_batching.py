"""Batches of requests of different lengths, which the server pads or packs: parameters of a model. Pure.

    parameters { key: "ragged" value { string_value: "pad" } }                    or "bucket", or "pack"
    parameters { key: "ragged_buckets" value { string_value: "32,64,128" } }      what lengths are padded to
    parameters { key: "ragged_mask" value { string_value: "MASK:TYPE_INT64" } }   an input that clients do not send
    parameters { key: "ragged_outputs" value { string_value: "STATES" } }         outputs that have the inputs' length
    parameters { key: "max_batch_elements" value { string_value: "4096" } }       of a batch, padding included

pad     requests are padded with zeros to the longest of the batch, or to its bucket, as far as padding costs less time
        than another execution
bucket  like `pad`, but only requests of one bucket share a batch
pack    nothing is padded: the inputs have `allow_ragged_batch`, and the batch is bounded by its elements

An input that is padded has one dimension of -1, and all such inputs of a request have one length. Triton has neither
padding nor a bound of elements, so these are parameters.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

PARAMETER, BUCKETS, MASK, OUTPUTS, MAX_ELEMENTS = (
    "ragged", "ragged_buckets", "ragged_mask", "ragged_outputs", "max_batch_elements",
)  # fmt: skip
#: The largest length, and the most elements, that can be set (ours: as large as a dimension can be).
MAX_LENGTH = 2**31 - 1
#: In place of an axis: the length of the input is the number of all its elements, since it is packed.
ALL = -1
_BUCKETS = re.compile(r"[1-9][0-9]{0,9}(,[1-9][0-9]{0,9}){0,63}")
_MASK = re.compile(r"[^:]+:TYPE_(BOOL|INT32|INT64|FP32)")
#: Backends whose batches the server pads, and built-in backends for which it pads none. All other backends run in
#: Python, where a model gets each request as it came.
_PADS = ("onnxruntime", "pytorch")
_CANNOT = ("embedding", "fil", "identity", "openvino", "tensorflow", "tensorrt", "torchserve", "vllm")


class Strategy(Enum):
    """How requests of different lengths become a batch; the value is the parameter's."""

    PAD = "pad"
    BUCKET = "bucket"
    PACK = "pack"


class Lengths(NamedTuple):
    """A model's settings for batching by length: `buckets` ascending, possibly none; `max_elements` of a batch, 0: any
    number."""

    strategy: Strategy
    buckets: tuple[int, ...]
    max_elements: int

    def padded(self, length: int) -> int:
        """The least length to which a request of this length is padded: the smallest of `buckets` that holds it, or
        the length itself if none does; with Strategy.BUCKET and no `buckets`, the next power of two."""
        for bucket in self.buckets:
            if length <= bucket:
                return bucket
        if self.strategy is Strategy.BUCKET and not self.buckets:
            return 1 << (length - 1).bit_length()
        return length


def strategy(config: dict[str, Any]) -> Strategy | None:
    """How a model's requests of different lengths are batched; None: only requests of equal shapes share a batch."""
    text = parameter(config, PARAMETER)
    return None if text is None else Strategy(text)


def lengths(config: dict[str, Any]) -> Lengths | None:
    """The settings for batching by length; None if the model is batched by equal shapes."""
    wanted = strategy(config)
    if wanted is None:
        return None
    buckets = tuple([int(each) for each in (parameter(config, BUCKETS) or "").split(",") if each])
    return Lengths(wanted, buckets, int(parameter(config, MAX_ELEMENTS) or 0))


def length_axes(config: Config) -> Mapping[str, int]:
    """The inputs that say how long a request is → the dimension of their length, the batch's not counted, or ALL."""
    wanted = strategy(config)
    if wanted is None:
        return {}
    if wanted is Strategy.PACK:
        return {each["name"]: ALL for each in config["input"] if each["allow_ragged_batch"]}
    return {each["name"]: list(each["dims"]).index(-1) for each in config["input"] if -1 in each["dims"]}


def mask(config: Config) -> tuple[str, str] | None:
    """Name and data type of the input that is made to tell elements from padding; None: there is none."""
    text = parameter(config, MASK)
    if text is None:
        return None
    name, _, data_type = text.partition(":")
    return name, data_type


def following_outputs(config: Config) -> Mapping[str, int]:
    """The outputs that are cut to each request's length → the dimension of their length, the batch's not counted."""
    text = parameter(config, OUTPUTS)
    named = None if text is None else {each for each in text.split(",") if each}
    return {
        each["name"]: list(each["dims"]).index(-1)
        for each in config["output"]
        if (list(each["dims"]).count(-1) == 1 and not _is_reshaped(each) if named is None else each["name"] in named)
    }


def _is_reshaped(tensor: Config) -> bool:
    return tensor.get("reshape") is not None


def faults(config: Config) -> Iterator[str]:
    """Check the parameters, and that nothing in the configuration contradicts them."""
    text = parameter(config, PARAMETER)
    which = f"parameter '{PARAMETER}' of model '{config['name']}'"
    if text is None:
        for name in (BUCKETS, MASK, OUTPUTS, MAX_ELEMENTS):
            if parameter(config, name) is not None:
                yield f"parameter '{name}' of model '{config['name']}' has no effect without '{PARAMETER}'. Add it"
        return
    if text not in [each.value for each in Strategy]:
        yield f"{which} is '{text}', must be 'pad', 'bucket' or 'pack'"
        return
    if "dynamic_batching" not in config:
        yield f"{which} is about dynamic batching, which the model has not. Add 'dynamic_batching {{ }}'"
        return
    yield from whole_number_faults(config, MAX_ELEMENTS, 1, MAX_LENGTH, f"a whole number from 1 to {MAX_LENGTH}")
    yield from _contradictions(config, which)
    yield from _wrong_texts(config, Strategy(text))


def _contradictions(config: Config, which: str) -> Iterator[str]:
    batching = config["dynamic_batching"]
    policy = batching.get("default_queue_policy", {})
    beside = {
        "preferred_batch_size": list(batching.get("preferred_batch_size", ())) not in ([], [config["max_batch_size"]]),
        "priority_levels": batching.get("priority_levels", 0) > 0,
        "default_timeout_microseconds": policy.get("default_timeout_microseconds", 0) > 0,
        "parameter 'latency_target_ms'": parameter(config, "latency_target_ms") not in (None, "0"),
        "parameter 'deterministic' with 'padded'": parameter(config, "deterministic") == "padded",
    }
    for what, is_set in beside.items():
        if is_set:
            yield f"{which} cannot be combined with {what}. Remove one of them"


def _wrong_texts(config: Config, wanted: Strategy) -> Iterator[str]:
    name = config["name"]
    for key in (BUCKETS, MASK, OUTPUTS):
        if wanted is Strategy.PACK and parameter(config, key) is not None:
            yield f"parameter '{key}' of model '{name}' is about padding, and '{PARAMETER}' is 'pack'. Remove it"
    text = parameter(config, BUCKETS)
    if text is not None:
        sizes = [int(each) for each in text.split(",")] if _BUCKETS.fullmatch(text) else []
        if not sizes or sizes != sorted(set(sizes)) or sizes[-1] > MAX_LENGTH:
            yield (
                f"parameter '{BUCKETS}' of model '{name}' is '{text}', must be at most 64 ascending lengths, as in "
                "'32,64,128'"
            )
    text = parameter(config, MASK)
    if text is not None and not _MASK.fullmatch(text):
        yield (
            f"parameter '{MASK}' of model '{name}' is '{text}', must be the name and data type of an input, as in "
            "'MASK:TYPE_INT64'; data types are TYPE_BOOL, TYPE_INT32, TYPE_INT64 and TYPE_FP32"
        )


def faults_when_finished(config: Config) -> Iterator[str]:
    """Check the tensors, and that the backend supports the settings."""
    wanted, name = strategy(config), config["name"]
    if wanted is None:
        return
    which = f"parameter '{PARAMETER}' of model '{name}' is '{wanted.value}'"
    if config["max_batch_size"] < 2:
        yield f"{which}, but 'max_batch_size' is {config['max_batch_size']}, must be at least 2"
    if any(each["optional"] for each in config["input"]):
        yield f"{which}, for which all requests must have all inputs: remove 'optional'"
    if wanted is Strategy.PACK:
        if not any(each["allow_ragged_batch"] for each in config["input"]):
            yield f"{which}, but no input has 'allow_ragged_batch: true'"
        for each in config["input"]:
            if -1 in each["dims"] and not each["allow_ragged_batch"]:
                yield f"{which}, but input '{each['name']}' has a dimension of -1 and no 'allow_ragged_batch: true'"
        return
    yield from _not_padded(config, which)


def _not_padded(config: Config, which: str) -> Iterator[str]:
    backend = config["backend"]
    if backend in _CANNOT:
        yield f"{which}, which backend '{backend}' does not do; only 'onnxruntime', 'pytorch' and 'python' do"
    if backend not in (*_PADS, *_CANNOT) and parameter(config, MASK) is not None:
        yield f"parameter '{MASK}' needs a batch that the server pads; a Python model sees each request. Remove it"
    if config["batch_input"] or config["batch_output"] or any(each["allow_ragged_batch"] for each in config["input"]):
        yield f"{which}, but inputs are ragged: with 'allow_ragged_batch' use 'pack'"
    variable = [each for each in config["input"] if -1 in each["dims"]]
    if not variable:
        yield f"{which}, but no input has a dimension of -1"
    for each in variable:
        if list(each["dims"]).count(-1) > 1 or _is_reshaped(each):
            yield f"{which}, for which input '{each['name']}' must have one dimension of -1, and no 'reshape'"
    made = mask(config)
    if made is not None and any(each["name"] == made[0] for each in config["input"]):
        yield f"parameter '{MASK}' names input '{made[0]}', which clients send; remove it from 'input'"
    outputs = {each["name"]: each for each in config["output"]}
    for output in (parameter(config, OUTPUTS) or "").split(","):
        if output and (output not in outputs or list(outputs[output]["dims"]).count(-1) != 1):
            yield f"parameter '{OUTPUTS}' names '{output}', which is no output with one dimension of -1"
        elif output and _is_reshaped(outputs[output]):
            yield f"parameter '{OUTPUTS}' names '{output}', which has a 'reshape'"
