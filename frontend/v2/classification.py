"""Triton's classification extension: the K largest values of an output, as strings `VALUE:INDEX[:LABEL]`, instead of
all its values.

Pure. The strings are a BYTES tensor in its wire form, which is sent in the output's place, in JSON as well as in
binary. Front-end processes.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shoal.datatypes import BF16, BOOL, BYTES, FP16, Datatype, encode_bytes_tensor
from shoal.errors import InternalError, InvalidArgumentError

#: Triton's limit on the elements of one row; also the limit on the strings of all rows, which are made one by one
#: (ours).
MAX_ELEMENTS = 1_000_000

_UNSUPPORTED = (BOOL, BYTES, FP16, BF16)
# Longer rows are partitioned before they are sorted. Measured, without and with that: 100 elements 4 and 7 µs, 1000
# elements 26 and 9 µs, 100,000 elements 11 and 0.15 ms.
_SORTED_AT_ONCE = 256


def classify(
    name: str,
    datatype: Datatype,
    shape: tuple[int, ...],
    view: memoryview,
    num_classes: int,
    labels: Sequence[str],
    *,
    has_batch: bool,
) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes of the BYTES tensor with `num_classes` classes (more than 0) of the output `name`.

    `shape` is the shape that clients see; all its dimensions but the batch dimension form one row. The largest value
    comes first; an index without a label, or with an empty one, is written without a label. Raises InvalidArgumentError
    with Triton's sentences, and InternalError if `view`, which a worker wrote, does not fill the shape.
    """
    if datatype in _UNSUPPORTED:
        raise InvalidArgumentError(f"class result not available for output due to unsupported type '{datatype.name}'")
    batch, num_elements = shape[:has_batch], prod(shape[has_batch:])
    num_rows = prod(batch)
    num_strings = min(num_classes, num_elements)
    if num_elements > MAX_ELEMENTS or num_rows * num_strings > MAX_ELEMENTS:
        raise InvalidArgumentError("classification output tensor too large")
    if num_rows * num_elements * datatype.itemsize != len(view):
        raise InternalError(f"output tensor shape does not match size of output for '{name}'")
    strings: list[bytes] = []
    if view:
        for row in np.frombuffer(view, datatype.dtype).reshape(num_rows, num_elements):
            strings += _strings(row, _largest(row, num_strings), labels)
    return (*batch, num_strings), encode_bytes_tensor(strings)


def _largest(row: "np.ndarray[Any, Any]", count: int) -> "np.ndarray[Any, Any]":
    """The indices of the `count` largest values, largest first; equal ones by index, NaN last.

    Triton's std::sort leaves the order of equal values open; for up to 16 elements libstdc++ has the order of this
    function.
    """
    keys = -row if row.dtype.kind == "f" else ~row  # ascend as the values descend; unlike -, ~ never overflows
    if len(keys) > _SORTED_AT_ONCE:
        bound = np.partition(keys, count - 1)[count - 1]
        if bound == bound:  # false for NaN, with which `<=` below would select no value
            candidates = np.flatnonzero(keys <= bound)  # ascending, so the sort can keep equal values in order
            return candidates[np.argsort(keys[candidates], kind="stable")[:count]]
    return np.argsort(keys, kind="stable")[:count]


def _strings(row: "np.ndarray[Any, Any]", indices: "np.ndarray[Any, Any]", labels: Sequence[str]) -> list[bytes]:
    form = "%.6f:%d" if row.dtype.kind == "f" else "%d:%d"  # as C++'s std::to_string writes them
    num_labels = len(labels)
    strings = []
    for value, index in zip(row[indices].tolist(), indices.tolist(), strict=True):
        text = form % (value, index)
        label = labels[index] if index < num_labels else ""
        strings.append((f"{text}:{label}" if label else text).encode())
    return strings
