"""Tensors between a test and a request: values become inputs, outputs become arrays.

An array is refused if its datatype is not the input's (FP32 is taken for BF16); a list, number or text is converted to
the input's datatype. Pure.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal import bf16
from shoal.client.arrays import as_input, copied, with_client_shapes
from shoal.datatypes import BF16, BYTES, FP32
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.star.client import HeldResponse
from shoal.star.models import ModelEntry
from shoal.star.outgoing import Input
from shoal.workers.tensors import Array

#: Kind of a tensor's numpy type → kinds of values that it may be made from, as in JSON: 1 is an FP32, 1.5 is no INT32.
_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}


def parse_inputs(signature: Signature, inputs: Mapping[str, Any]) -> list[Input]:
    """The inputs of a request, not yet validated. Raises InvalidArgumentError for a value that cannot be a tensor."""
    return [_parse(name, value, signature.inputs.get(name)) for name, value in inputs.items()]


def _parse(name: str, value: Any, spec: TensorSpec | None) -> Input:
    array = _as_array(name, value) if spec is None or hasattr(value, "__array__") else to_array(value, spec)
    if spec is not None and spec.datatype is BF16 and array.dtype == FP32.dtype:
        array = bf16.words_of(array)  # numpy has no BF16
    return as_input(name, array, spec)


def to_array(value: Any, spec: TensorSpec) -> Array:
    """An array of the input's datatype from numbers or texts. Raises InvalidArgumentError for values that this datatype
    cannot hold, and for lists of unequal length."""
    datatype = FP32 if spec.datatype is BF16 else spec.datatype
    if datatype is BYTES:
        return np.array(value, BYTES.dtype)
    array = _as_array(spec.name, value)
    kind = datatype.dtype.kind
    if array.size and (array.dtype.kind not in _KINDS[kind] or (kind in "iu" and not _fits(array, datatype.dtype))):
        raise InvalidArgumentError(f"input '{spec.name}': {value!r} cannot be a tensor of {spec.datatype.name}")
    return array.astype(datatype.dtype)


def _as_array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidArgumentError(f"input '{name}' is a list of lists that differ in length") from error


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return limits.min <= int(array.min()) and int(array.max()) <= limits.max


def as_arrays(entry: ModelEntry, answer: HeldResponse) -> dict[str, Array]:
    """The outputs of a response, owned by the caller; BF16, which numpy lacks, becomes float32.

    Raises InternalError if a model has written a malformed response.
    """
    opened = with_client_shapes(entry, answer.response)
    arrays = copied(opened, answer.block.data)
    for name, datatype, *_ in opened.tensors:
        if datatype is BF16:
            arrays[name] = bf16.values_of(arrays[name])
    return arrays
