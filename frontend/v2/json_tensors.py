"""Tensors in JSON: turns a request's `data` into the tensor's bytes, and an output's bytes into JSON text.

`data` may be flat or nested in any way, only the number of elements counts. Types are strict: 1.0 is no integer and 1
no boolean; an integer too large for the tensor wraps. All work on the elements of valid data is done in C, unless
elements stand beside lists; for invalid data a slow loop finds the error that Triton would report. Front-end processes.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from shoal.datatypes import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    Datatype,
    TruncatedBytesError,
    decode_bytes_tensor,
    encode_bytes_tensor,
    format_shape,
)
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.frontend.read_json import MAX_INT64, MAX_UINT64, wrong_type

_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
_TYPECODES = {"FP32": "f", "FP64": "d"}
_KINDS = {"b": "boolean", "i": "signed-integer", "u": "unsigned-integer", "f": "number"}
_RANGES = {"b": (0, 1), "i": (~MAX_INT64, MAX_INT64), "u": (0, MAX_UINT64), "f": (-(2**1023), 2**1023)}
_MISCOUNTED = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_MISMATCHED = "output tensor shape does not match size of output for '{}'"

_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)} | {
    8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", ord('"'): '\\"', ord("\\"): "\\\\",
}  # fmt: skip


def checked_num_elements(name: str, shape: Sequence[int], itemsize: int) -> int:
    """The number of elements of a shape in a request. Raises InvalidArgumentError for a dimension, a number of
    elements or a number of bytes that Triton's 64-bit arithmetic cannot hold."""
    product = 1
    for dim in shape:
        if not 0 <= dim <= MAX_INT64:
            problem = f"shape {format_shape(shape)} contains one or more invalid dimensions"
            raise InvalidArgumentError(f"invalid shape for input '{name}': {problem}")
        product *= dim
        if product > MAX_INT64:
            problem = f"shape {format_shape(shape)} causes total element count to exceed maximum size of {MAX_INT64}"
            raise InvalidArgumentError(f"invalid shape for input '{name}': {problem}")
    if product * itemsize > MAX_INT64:
        raise InvalidArgumentError(f"byte size overflow for input '{name}' with shape {format_shape(shape)}")
    return product


def decode_data(
    name: str, datatype: Datatype | None, num_elements: int, data: list[Any], max_input_size: int
) -> tuple[memoryview, int]:
    """The bytes of an input given as JSON, and the number of its elements. Raises ShoalErrors with Triton's sentences.

    `datatype` is None if the request names one that Triton does not have. Only for BYTES may the number differ from
    `num_elements`: Triton reports that later, with another error. As in Triton, data are not checked if `num_elements`
    is 0.
    """
    if num_elements == 0:
        return memoryview(b""), 0
    if datatype is None:
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    if datatype is FP16 or datatype is BF16:
        raise InvalidArgumentError(
            f"receiving {datatype.name} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    if datatype.itemsize * num_elements > max_input_size:
        raise _too_large(name, datatype.itemsize * num_elements, max_input_size)
    elements, types = _flatten(data)
    if datatype is BYTES:
        return _decode_strings(name, elements, types, max_input_size)
    encoded = _to_bytes(datatype, elements, types) if len(elements) == num_elements else None
    if encoded is None:
        raise _refusal(name, datatype, elements, num_elements)
    return memoryview(encoded), num_elements


def flat_array(datatype: Datatype) -> tuple[str | None, frozenset[type]]:
    """The typecode of an `array` that stores the tensor's numbers unchanged (None if there is no such typecode), and
    the Python types that the parsed numbers must have."""
    kind = datatype.dtype.kind
    typecode = _TYPECODES.get(datatype.name) or {"INT64": "q", "UINT64": "Q"}.get(datatype.name)
    return typecode, frozenset(_TYPES[kind])


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """The elements in row-major order, and their types."""
    types = set(map(type, data))
    while list in types:
        if len(types) > 1:
            data = list(_walk(data))
        else:
            data = list(chain.from_iterable(data))
        types = set(map(type, data))
    return data, types


def _walk(data: list[Any]) -> Iterator[Any]:
    # At most MAX_DEPTH deep: read_json has refused deeper JSON.
    for element in data:
        if type(element) is list:
            yield from _walk(element)
        else:
            yield element


def _to_bytes(datatype: Datatype, elements: list[Any], types: set[type]) -> bytes | None:
    """The elements as the tensor's bytes; None if an element is of a wrong type."""
    kind = datatype.dtype.kind
    if not types <= _TYPES[kind]:
        return None
    if datatype is BOOL:
        return bytes(elements)
    try:
        # `array`, not numpy: it takes 0.7 µs for 16 floats, and turns 1e300 into an infinite FP32 without a warning, as
        # C does.
        wide = array(_TYPECODES.get(datatype.name) or ("q" if kind == "i" else "Q"), elements)
    except OverflowError:
        return None
    if wide.itemsize == datatype.itemsize:
        return wide.tobytes()
    return np.frombuffer(wide, f"{kind}8").astype(datatype.dtype).tobytes()


def _decode_strings(name: str, elements: list[Any], types: set[type], max_input_size: int) -> tuple[memoryview, int]:
    if not types <= {str}:
        raise InternalError(f"Unable to parse JSON bytes array: {wrong_type('string')}")
    encoded = encode_bytes_tensor(list(map(str.encode, elements)))
    if len(encoded) > max_input_size:
        raise _too_large(name, len(encoded), max_input_size)
    return memoryview(encoded), len(elements)


def _refusal(name: str, datatype: Datatype, elements: Sequence[Any], num_elements: int) -> ShoalError:
    """The error that Triton, which reads one element after the other, would find first."""
    for index, element in enumerate(elements):
        if index == num_elements:
            break
        if not _is_of(datatype, element):
            return InternalError(f"Unable to parse 'data': {wrong_type(_KINDS[datatype.dtype.kind])}")
    return InternalError(
        f"{_MISCOUNTED}. Input '{name}' has {num_elements} elements by its shape, but {len(elements)} in its data"
    )


def _is_of(datatype: Datatype, element: Any) -> bool:
    kind = datatype.dtype.kind
    lowest, highest = _RANGES[kind]
    return type(element) in _TYPES[kind] and (type(element) is not int or lowest <= element <= highest)


def _too_large(name: str, nbytes: int, max_input_size: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"JSON input '{name}' has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of "
        f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
    )


# ---------------------------------------------------------------------------------------------------------------


def encode_data(name: str, datatype: Datatype, num_elements: int, view: memoryview) -> orjson.Fragment:
    """An output's `data` as a fragment for orjson, see encode_text. Raises ShoalError."""
    return orjson.Fragment(encode_text(name, datatype, num_elements, view))


def encode_text(name: str, datatype: Datatype, num_elements: int, view: memoryview) -> bytes:
    """An output's `data` as JSON text, flat. Raises InternalError if `view`, which a worker wrote, does not fit the
    shape, InvalidArgumentError for a datatype that has no form in JSON.

    An FP32 is printed with the fewest digits that give the same FP32 back.
    """
    if datatype is FP16 or datatype is BF16:
        raise InvalidArgumentError(
            f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
        )
    if datatype is BYTES:
        return _encode_strings(name, num_elements, view)
    if len(view) != num_elements * datatype.itemsize:
        raise InternalError(_MISMATCHED.format(name))
    values = np.frombuffer(view, datatype.dtype)
    if datatype is BOOL:
        values = np.frombuffer(view, np.uint8) != 0  # a worker may have written other bytes than 0 and 1
    elif not values.flags.aligned:
        values = values.copy()
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if datatype.dtype.kind == "f" and b"null" in text:
        text = _name_non_finite(text, values)
    return text


def _name_non_finite(text: bytes, values: "np.ndarray[Any, Any]") -> bytes:
    """The text with NaN, Infinity and -Infinity, as Triton writes them, in place of orjson's null; JSON itself has no
    such values."""
    words = [
        b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
        for value in values[~np.isfinite(values)]
    ]
    pieces = text.split(b"null")
    return b"".join(chain.from_iterable(zip(pieces, [*words, b""], strict=True)))


def _encode_strings(name: str, num_elements: int, view: memoryview) -> bytes:
    try:
        elements = decode_bytes_tensor(view)
    except TruncatedBytesError:
        raise InternalError(_MISMATCHED.format(name)) from None
    if len(elements) != num_elements:
        raise InternalError(_MISMATCHED.format(name))
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        # Bytes that are no UTF-8 are copied unchanged, as by Triton, whose client then tells its user to use the binary
        # format.
        return b"[" + b",".join(map(_quote, elements)) + b"]"


def _quote(element: bytes) -> bytes:
    text = element.decode("utf-8", "surrogateescape").translate(_ESCAPES)
    return b'"' + text.encode("utf-8", "surrogateescape") + b'"'
