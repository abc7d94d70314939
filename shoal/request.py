"""Requests and responses in shared memory: tensors in place, and a msgpack header that describes them.

A block of a client holds the tensors of one request and, after them, its header; a block of a worker holds the outputs
of one executed batch and, after them, one header per request of that batch. Ring records say where the header is. Pure:
bytes in, tuples out. Headers from other processes are checked here before use.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgpack

from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError

Parameters = dict[str, "str | int | float | bool"]
_PARAMETER_KINDS = {str, int, float, bool}
_Kind = TypeVar("_Kind")


class TensorRef(NamedTuple):
    """A tensor inside a block: `offset` and `nbytes` in bytes from the block's start, `datatype` a wire number."""

    name: str
    datatype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class LentTensorRef(NamedTuple):
    """A TensorRef of a request's tensor in another block, `ref`, than the header's; read by workers alone."""

    name: str
    datatype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    ref: int


#: Correlation id (0 or "": none) and Triton's flags.
Sequence = tuple["int | str", int]
NO_SEQUENCE: Sequence = (0, 0)


class InferRequest(NamedTuple):
    """The contents of a request's header. `requested_outputs` is empty where all outputs are wanted."""

    id: str
    inputs: tuple[TensorRef, ...]
    requested_outputs: tuple[str, ...]
    parameters: Parameters
    sequence: Sequence = NO_SEQUENCE


class InferResponse(NamedTuple):
    """The contents of a response's header."""

    outputs: tuple[TensorRef, ...]
    parameters: Parameters


def pack_request(request: InferRequest) -> bytes:
    """The packed header of a request, for the block with its inputs."""
    # Most requests have no sequence, and then no field for it.
    said = request if request.sequence != NO_SEQUENCE else request[:4]
    return msgpack.packb(said, use_bin_type=True)  # type: ignore[no-any-return]


def unpack_request(header: memoryview, block_nbytes: int) -> InferRequest:
    """A request's header, unpacked by a worker. Raises InternalError where a tensor is not inside the block."""
    request, refs = _unpack_request(header, lambda rows: _tensor_refs(rows, block_nbytes))
    return request._replace(inputs=refs)


def unpack_lent_request(
    header: bytes, nbytes_of: Callable[[int], int]
) -> tuple[InferRequest, tuple[LentTensorRef, ...]]:
    """A request's header, unpacked, whose inputs may lie in the header's own block, with reference 0, or in others.

    `nbytes_of` returns a block's size in bytes, 0 where it is gone. Raises InternalError for tensors outside.
    """

    def lent(row: Any) -> LentTensorRef:
        (lender,) = row[5:] or (0,)
        return LentTensorRef(*_tensor_ref(row[:5], nbytes_of(_checked(int, lender))), lender)

    return _unpack_request(header, lambda rows: tuple([lent(row) for row in _checked(tuple, rows)]))


def _unpack_request(
    header: bytes | memoryview, refs_of: Callable[[Any], tuple[_Kind, ...]]
) -> tuple[InferRequest, tuple[_Kind, ...]]:
    try:
        id_, inputs, outputs, parameters, *more = msgpack.unpackb(header, use_list=False, raw=False)
        names = tuple([_checked(str, name) for name in _checked(tuple, outputs)])
        refs, sequence = refs_of(inputs), check_sequence(more[0]) if more else NO_SEQUENCE
        return InferRequest(_checked(str, id_), (), names, check_parameters(parameters), sequence), refs
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InternalError(f"a request header in shared memory is damaged: {error}") from error


def check_sequence(said: Any) -> Sequence:
    """The sequence in a header. Raises TypeError or ValueError where it is malformed."""
    correlation_id, flags = _checked(tuple, said)
    if type(correlation_id) is not str:
        _checked(int, correlation_id)
    return correlation_id, _checked(int, flags)


def pack_response(response: InferResponse) -> bytes:
    """The packed header of a response, for the block with its outputs."""
    return msgpack.packb(response, use_bin_type=True)  # type: ignore[no-any-return]


def unpack_response(header: bytes | memoryview, block_nbytes: int) -> InferResponse:
    """A response's header, unpacked and checked: workers run user code. Raises InternalError if it is malformed."""
    try:
        outputs, parameters = msgpack.unpackb(header, use_list=False, raw=False)
        return InferResponse(_tensor_refs(outputs, block_nbytes), check_parameters(parameters))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InternalError(f"a response header in shared memory is damaged: {error}") from error


def _tensor_refs(rows: Any, block_nbytes: int) -> tuple[TensorRef, ...]:
    return tuple([_tensor_ref(row, block_nbytes) for row in _checked(tuple, rows)])


def _tensor_ref(row: Any, block_nbytes: int) -> TensorRef:
    name, datatype, shape, offset, nbytes = row
    # Types first: 11.0 and True are keys of BY_WIRE too, and 0.0 lies in every block.
    if not type(datatype) is type(offset) is type(nbytes) is int:
        raise TypeError(f"tensor {name!r} has a datatype, offset or size that is no integer")
    if datatype not in BY_WIRE or not 0 <= offset <= offset + nbytes <= block_nbytes:
        raise ValueError(f"tensor {name!r} of type {datatype} at {offset} + {nbytes} of {block_nbytes} bytes")
    for dim in _checked(tuple, shape):
        if type(dim) is not int or dim < 0:
            raise ValueError(f"tensor {name!r} has a dimension of {dim!r}")
    return TensorRef(_checked(str, name), datatype, shape, offset, nbytes)


def check_parameters(parameters: Any) -> Parameters:
    """The parameters in a header. Raises TypeError where they are malformed."""
    for key, value in _checked(dict, parameters).items():
        if type(key) is not str or type(value) not in _PARAMETER_KINDS:
            raise TypeError(f"a parameter {key!r} of kind {type(value).__name__}")
    return parameters  # type: ignore[no-any-return]


def _checked(kind: type[_Kind], value: Any) -> _Kind:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value
