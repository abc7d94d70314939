"""Arrays of a guest as tensors of requests and responses: small ones are copied, large ones passed by reference.

Pure. The results of validating a request and of parsing a response's header are kept for similar requests and
responses: without that, the two would take 40 of the 60 µs that a request of 16 floats spends here.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.client.request_arguments import RequestArguments
from shoal.datatypes import ALL, BF16, BY_WIRE, BYTES, Datatype, decode_bytes_tensor, encode_bytes_tensor
from shoal.errors import InternalError, InvalidArgumentError
from shoal.model_config.signature import TensorSpec
from shoal.request import InferResponse, Parameters, unpack_response
from shoal.shm.layout import unpack_span
from shoal.star.models import ModelEntry, client_shape
from shoal.star.outgoing import Input, OutgoingRequest, RawRequest, aligned, check

Array: TypeAlias = NDArray[Any]
#: The most kept templates of requests, and the most kept headers of responses (ours).
MAX_TEMPLATES = 256
#: Up to so many bytes, `tobytes` and a copy are quicker than an array over the block.
_SMALL_NBYTES = 2048
_DATATYPES: dict[np.dtype[Any], Datatype] = {each.dtype: each for each in ALL if each not in (BF16, BYTES)}


class Lent(NamedTuple):
    """The place of an array that is not copied: the block's reference, and the offset in the block in bytes."""

    ref: int
    offset: int


class ArraysTemplate(NamedTuple):
    """The kept result of validating a request without strings: its tensors' places in the block, and its header."""

    entry: ModelEntry
    nbytes: int
    # offset and size of each tensor, in bytes; None if it is passed by reference
    places: tuple[tuple[int, int] | None, ...]
    header: bytes
    span: int
    rows: int
    shape_key: int
    lends: bool  # some tensors are passed by reference, and must stay until the last reply

    def write(self, memory: memoryview, arrays: Sequence[Array]) -> int:
        """Copy `arrays` and the header into a block of at least `nbytes` bytes. Returns the header's span."""
        for array, place in zip(arrays, self.places, strict=True):
            if place is None:
                continue
            offset, nbytes = place
            if nbytes <= _SMALL_NBYTES:
                memory[offset : offset + nbytes] = array.tobytes()
            else:
                np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
        offset, nbytes = unpack_span(self.span)
        memory[offset : offset + nbytes] = self.header
        return self.span


def as_arrays(entry: ModelEntry, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Inputs as arrays: lists and numbers become arrays of the input's datatype. Raises InvalidArgumentError."""
    arrays = {}
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray):
            spec = entry.signature.inputs.get(name)
            value = made_array(name, value, None if spec is None else spec.datatype)
        arrays[name] = value
    return arrays


def made_array(name: str, value: Any, datatype: Datatype | None) -> Array:
    """A list or a number as an array of the input's datatype, if that is known. Raises InvalidArgumentError if numpy
    makes no array of it, or would cut off fractions."""
    try:
        array: Array = np.asarray(value, None if datatype is None else datatype.dtype)
        if datatype is not None and datatype.dtype.kind in "iu":
            given = np.asarray(value)
            if given.dtype.kind == "f" and (array != given).any():
                wanted = (
                    "the 16-bit words of a BF16 tensor" if datatype is BF16 else f"the {datatype.name} of the model"
                )
                cut_off = given[array != given][0]
                raise InvalidArgumentError(f"input '{name}' has the number {cut_off}, which is not {wanted}")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"input '{name}' cannot be made an array: {error}") from error
    return array


def prepare(
    entry: ModelEntry, arrays: Mapping[str, Array], asked: RequestArguments, lent: Mapping[str, Lent]
) -> OutgoingRequest:
    """Validate a request against its model. Raises InvalidArgumentError, mostly in Triton's words."""
    specs = entry.signature.inputs
    tensors = [as_input(name, array, specs.get(name), lent.get(name, _NOWHERE)) for name, array in arrays.items()]
    sequence = (asked.sequence_id, asked.flags) if asked.sequence_id else (0, 0)
    outputs, parameters = tuple(asked.outputs or ()), asked.parameters or {}
    return check(
        entry, RawRequest(asked.request_id, tensors, outputs, parameters, asked.priority, asked.timeout_us, *sequence)
    )


_NOWHERE = Lent(0, 0)


def as_input(name: str, array: Array, spec: TensorSpec | None, where: Lent = _NOWHERE) -> Input:
    """An array as an input of a request. The datatype is BYTES for an array of strings, BF16 for an array of uint16 if
    the model's input is BF16, and else the datatype of the array's dtype. Raises InvalidArgumentError for an array that
    no tensor can hold."""
    if array.dtype.kind in "OSU":
        datatype, data = BYTES, memoryview(encode_bytes_tensor(elements(name, array)))
    else:
        is_bf16 = spec is not None and spec.datatype is BF16 and array.dtype == BF16.dtype
        known = BF16 if is_bf16 else _DATATYPES.get(array.dtype)
        if known is None:
            raise no_datatype(name, array.dtype)
        datatype, data = known, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return Input(name, datatype, array.shape, data, where.ref, where.offset)


def no_datatype(name: str, dtype: np.dtype[Any]) -> InvalidArgumentError:
    """The error for an array whose elements no tensor holds."""
    remedy = "the dtype for the datatype in model_metadata"
    if dtype.byteorder == ">":
        remedy = f"'{dtype.newbyteorder('<').str}'"
    return InvalidArgumentError(
        f"input '{name}' is an array of {dtype}, which is no datatype: convert it with astype({remedy})"
    )


def elements(name: str, array: Array) -> list[bytes]:
    """The elements of an array of strings, texts in UTF-8. Raises InvalidArgumentError for any other element."""
    values = array.ravel().tolist()
    try:
        return [each if isinstance(each, bytes) else str.encode(each) for each in values]
    except TypeError:
        other = next(type(each).__name__ for each in values if not isinstance(each, (bytes, str)))
        raise InvalidArgumentError(
            f"an element of input '{name}' is {other}, neither bytes nor text: an array of numbers needs a dtype of "
            "numbers"
        ) from None
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"an element of input '{name}' has no UTF-8: {error}") from None


def template_of(
    outgoing: OutgoingRequest, arrays: Mapping[str, Array], block: memoryview, span: int
) -> ArraysTemplate | None:
    """The template of a request that was written into `block`; None if the next similar request may need a different
    header."""
    ask = outgoing.ask
    if ask.id or ask.parameters or ask.correlation_id or ask.flags:
        return None
    if any(each.datatype is BYTES for each in ask.inputs):
        return None
    offset = 0
    places: list[tuple[int, int] | None] = []
    for tensor, array in zip(ask.inputs, arrays.values(), strict=True):
        if tensor.ref:
            places.append(None)
            continue
        places.append((offset, array.nbytes))
        offset += aligned(array.nbytes)
    start, nbytes = unpack_span(span)
    header = block[start : start + nbytes].tobytes()
    return ArraysTemplate(
        outgoing.entry, start + nbytes, tuple(places), header, span, outgoing.rows, outgoing.shape_key, None in places
    )


class Opened(NamedTuple):
    """A parsed response header: its tensors, and the response's parameters."""

    # name, datatype, shape, offset and size in bytes
    tensors: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]
    parameters: Parameters


def open_response(entry: ModelEntry, header: bytes, block_nbytes: int) -> Opened:
    """Parse a response's header. Raises InternalError if a worker has written a malformed one."""
    return with_client_shapes(entry, unpack_response(header, block_nbytes))


def with_client_shapes(entry: ModelEntry, response: InferResponse) -> Opened:
    """A parsed response, its tensors with the shapes that clients see. Raises InternalError if a worker has written a
    malformed one."""
    tensors = []
    for ref in response.outputs:
        name, wire, _, offset, nbytes = ref
        datatype, shape = BY_WIRE[wire], client_shape(entry, ref)
        if datatype is not BYTES and prod(shape) * datatype.itemsize != nbytes:
            raise InternalError(f"output tensor shape does not match size of output for '{name}'")
        tensors.append((name, datatype, shape, offset, nbytes))
    return Opened(tuple(tensors), response.parameters)


def copied(opened: Opened, block: memoryview) -> dict[str, Array]:
    """Copies of a response's tensors, owned by the caller."""
    arrays = {}
    for name, datatype, shape, offset, nbytes in opened.tensors:
        if datatype is BYTES:
            arrays[name] = _strings(name, shape, block[offset : offset + nbytes])
        else:
            arrays[name] = np.ndarray(shape, datatype.dtype, block[offset : offset + nbytes]).copy()
    return arrays


def viewed(opened: Opened, held: NDArray[np.uint8]) -> dict[str, Array]:
    """Read-only views of a response's tensors in `held`; BYTES tensors are copies."""
    arrays = {}
    for name, datatype, shape, offset, nbytes in opened.tensors:
        if datatype is BYTES:
            arrays[name] = _strings(name, shape, held.data[offset : offset + nbytes])
        else:
            arrays[name] = np.ndarray(shape, datatype.dtype, held, offset)
    return arrays


def _strings(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    try:
        array: Array = np.empty(prod(shape), BYTES.dtype)
        array[:] = decode_bytes_tensor(data)
        return array.reshape(shape)
    except ValueError as error:
        raise InternalError(f"output '{name}' cannot be read: {error}") from error
