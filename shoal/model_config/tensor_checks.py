"""Checks of a configuration's inputs and outputs: names, datatypes, dims, reshape, format, optional.

Part of `checks`, in the form used there: generators of sentences, in Triton's words where Triton has any. Pure.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from shoal.datatypes import BY_CONFIG_NAME, MAX_DIM, MAX_TENSOR_BYTES, format_shape
from shoal.model_config.messages import Config
from shoal.model_config.python_backends import runs_on

#: The most dims (ours): with the batch dimension, the most that numpy 1 has.
MAX_DIMS = 31
MAX_TENSORS = 1024

_VARIABLE = -1


def tensors(config: Config) -> Iterator[str]:
    """Check all inputs, then all outputs."""
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
