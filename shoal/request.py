"""Requests and responses in shared memory: tensors in place, and a msgpack header that describes them.

A block of a client holds the tensors of one request and, after them, its header; a block of a worker holds the outputs
of one executed batch and, after them, one header per request of that batch. Ring records say where the header is. Pure:
bytes in, tuples out. Headers from other processes are checked here before use.

The header of a request has two parts, so that processes recognise the first by its bytes, whatever the second is:

    0        size of the layout in bytes, 4 bytes, little-endian
    4        layout: inputs and requested outputs, which are equal in most requests of a client; behind them, where
             outputs are to be written into a client's memory on a GPU, their targets; or, of a request that a model or
             an ensemble makes, the outputs that may stay on a GPU
    ...      options: id, parameters and, where the request is of one, the sequence, which may be new in every request;
             behind them, where headers are recorded, those of the request

A tensor that a worker has left on its GPU for another model has PLACED added to its datatype's number. Then the block
has, in place of the tensor's bytes, where it lies, so that a holder of the block holds the tensor:

    placed   the server's number of the GPU, 4 bytes; handle of the worker's pool there (cudaIpcMemHandle_t), 64 bytes;
             bytes from the pool's start, 8 bytes; little-endian
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError
from shoal.sequences import FLAGS

Parameters = dict[str, "str | int | float | bool"]
_PARAMETER_KINDS = {str, int, float, bool}
_Kind = TypeVar("_Kind")
_SIZE = Struct("<I")
#: Bytes of a cudaIpcMemHandle_t.
HANDLE_NBYTES = 64
_PLACED = Struct(f"<I{HANDLE_NBYTES}sQ")
PLACED_NBYTES = _PLACED.size
PLACED = 1 << 8


class TensorRef(NamedTuple):
    """A tensor inside a block: `offset` and `nbytes` in bytes from the block's start, `datatype` a wire number."""

    name: str
    datatype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class LentTensorRef(NamedTuple):
    """A TensorRef of a request's tensor that lies in another block than the header: in `ref`."""

    name: str
    datatype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    ref: int


class CudaTensorRef(NamedTuple):
    """A TensorRef of a request's tensor in a client's memory on a GPU, `place` (shm/cuda_regions.py); read by workers
    alone. `offset` in bytes from the region's start."""

    name: str
    datatype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    place: bytes


class CudaTarget(NamedTuple):
    """The part of a client's memory on a GPU where a worker writes an output that has room there."""

    name: str
    place: bytes
    offset: int
    nbytes: int


class Placed(NamedTuple):
    """A tensor's place in a worker's pool on a GPU, as it stands in a block."""

    device_id: int  # the server's number of the GPU
    handle: bytes
    offset: int  # bytes from the pool's start

    def pack(self) -> bytes:
        """The place's PLACED_NBYTES bytes."""
        return _PLACED.pack(*self)


def unpack_placed(block: memoryview, offset: int) -> Placed:
    """The place that stands at `offset` in a block. Raises InternalError if the block ends before it."""
    if not 0 <= offset <= len(block) - PLACED_NBYTES:
        raise InternalError(f"a place on a GPU at {offset} of a block of {len(block)} bytes")
    return Placed(*_PLACED.unpack(block[offset : offset + PLACED_NBYTES]))


class Stay(NamedTuple):
    """An output that the worker may leave in its own pool on a GPU, since all readers of the output take it there.
    `gpu` is the server's number of the GPU."""

    name: str
    gpu: int


#: The reference in a LentTensorRef whose tensor lies in no block, but in a client's memory on a GPU.
ON_GPU = -1

#: Correlation id (0 or "": none) and Triton's flags.
Sequence = tuple["int | str", int]
NO_SEQUENCE: Final[Sequence] = (0, 0)
#: HTTP headers or gRPC metadata of a request that go into recordings, with names in lower case.
RecordedHeaders = tuple[tuple[str, str], ...]


class InferRequest(NamedTuple):
    """The contents of a request's header. `requested_outputs` is empty where all outputs are wanted."""

    id: str
    inputs: tuple[TensorRef, ...]
    requested_outputs: tuple[str, ...]
    parameters: Parameters
    sequence: Sequence = NO_SEQUENCE
    targets: tuple[CudaTarget, ...] | tuple[Stay, ...] = ()
    headers: RecordedHeaders = ()


class InferOptions(NamedTuple):
    """The members of a request beside its tensors. Clients change them from request to request."""

    id: str = ""
    parameters: Parameters = {}  # noqa: RUF012  never changed
    sequence: Sequence = NO_SEQUENCE
    headers: RecordedHeaders = ()


class InferResponse(NamedTuple):
    """The contents of a response's header."""

    outputs: tuple[TensorRef, ...]
    parameters: Parameters


def pack_request(request: InferRequest) -> bytes:
    """The header of a request, for the block its inputs lie in."""
    said = request.inputs, request.requested_outputs
    layout = _packed((*said, request.targets) if request.targets else said)
    options = pack_options(request.id, request.parameters, request.sequence, request.headers)
    return layout_head(len(layout)) + layout + options


def layout_head(nbytes: int) -> bytes:
    """The size in front of a layout of `nbytes` bytes, in a request's header."""
    return _SIZE.pack(nbytes)


def pack_options(
    id_: str, parameters: Parameters, sequence: Sequence = NO_SEQUENCE, headers: RecordedHeaders = ()
) -> bytes:
    """The options in a request's header; of the request's flags, only those of sequences are packed."""
    if sequence == NO_SEQUENCE and not headers:
        return _packed((id_, parameters))
    correlation_id, flags = sequence
    sequence = correlation_id, flags & FLAGS
    if headers:
        return _packed((id_, parameters, sequence, headers))
    return _packed((id_, parameters) if sequence == NO_SEQUENCE else (id_, parameters, sequence))


def pack_id(id_: str) -> bytes:
    """The id as it stands between the parts that `around_id` returns."""
    return _packed(id_)


def _packed(value: object) -> bytes:
    return msgpack.packb(value, use_bin_type=True)  # type: ignore[no-any-return]


#: The options of a request that has none, which is usual.
NO_OPTIONS: Final = pack_options("", {})
#: The packed options, up to the id, of a request that has no option but an id of at most 64 bytes, by the size of all
#: its packed options.
_BEFORE_ID: Final = {
    len(said): said[: -nbytes - 1] for nbytes in range(1, 65) if (said := pack_options(" " * nbytes, {}))
}
_NO_PARAMETERS: Final = NO_OPTIONS[-1]
#: Makes InferOptions from a tuple of their four fields, with a third of the constructor's instructions.
_make_options: Final[Callable[[tuple[str, Parameters, Sequence, RecordedHeaders]], InferOptions]] = partial(
    tuple.__new__, InferOptions
)


def split_header(header: bytes) -> tuple[bytes, bytes]:
    """Layout, with its size in front, and options of a request's header. Raises InternalError where it is too short."""
    try:
        (nbytes,) = _SIZE.unpack_from(header)
    except StructError as error:
        raise _damaged(error) from error
    end = _SIZE.size + nbytes
    return header[:end], header[end:]


def around_id(header: bytes) -> tuple[bytes, bytes]:
    """The bytes in front of and behind the id, as msgpack has it, in the header of a request without one."""
    layout, options = split_header(header)
    # One byte says how many options there are, the next that the id, their first, is empty.
    return layout + options[:1], options[2:]


def unpack_options(packed: bytes) -> InferOptions:
    """The options in a request's header. Raises InternalError where they are damaged."""
    before_id = _BEFORE_ID.get(len(packed))
    try:
        if before_id is not None and packed.startswith(before_id) and packed[-1] == _NO_PARAMETERS:
            return _make_options((str(packed[len(before_id) : -1], "utf-8"), {}, NO_SEQUENCE, ()))
        id_, parameters, *more = msgpack.unpackb(packed, use_list=False, raw=False)
        if not more:
            return InferOptions(_checked(str, id_), check_parameters(parameters))
        said, *rest = more
        headers = _check_headers(*rest) if rest else ()
        return InferOptions(_checked(str, id_), check_parameters(parameters), check_sequence(said), headers)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _damaged(error) from error


def unpack_layout(layout: bytes) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The inputs, unchecked, and the requested outputs in a layout as `split_header` returns it. Raises InternalError
    where it is damaged."""
    try:
        inputs, outputs, *_ = msgpack.unpackb(layout[_SIZE.size :], use_list=False, raw=False)
        return _checked(tuple, inputs), tuple([_checked(str, name) for name in _checked(tuple, outputs)])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _damaged(error) from error


def unpack_targets(layout: bytes) -> tuple[CudaTarget | Stay, ...]:
    """The targets of outputs, or the outputs that may stay on a GPU, in a layout as `split_header` returns it. Raises
    InternalError where it is damaged."""
    try:
        _, _, *targets = msgpack.unpackb(layout[_SIZE.size :], use_list=False, raw=False)
        rows = _checked(tuple, targets[0]) if targets else ()
        return tuple([_stay(*row) if len(_checked(tuple, row)) == 2 else _target(*row) for row in rows])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _damaged(error) from error


def _target(name: Any, place: Any, offset: Any, nbytes: Any) -> CudaTarget:
    if not type(offset) is type(nbytes) is int or offset < 0 or nbytes < 0:
        raise TypeError(f"a target of output {name!r} without place")
    return CudaTarget(_checked(str, name), _checked(bytes, place), offset, nbytes)


def _stay(name: Any, gpu: Any) -> Stay:
    return Stay(_checked(str, name), _checked(int, gpu))


def unpack_request(header: memoryview, block_nbytes: int) -> InferRequest:
    """A request's header, unpacked, without tensors on a GPU. Raises InternalError for a tensor outside the block."""
    layout, packed = split_header(bytes(header))
    rows, outputs = unpack_layout(layout)
    id_, parameters, sequence, headers = unpack_options(packed)
    try:
        here = tuple([row for row in rows if not _is_on_gpu(row)])
        return InferRequest(id_, _tensor_refs(here, block_nbytes), outputs, parameters, sequence, (), headers)
    except (ValueError, TypeError) as error:
        raise _damaged(error) from error


def unpack_lent_request(
    header: bytes, nbytes_of: Callable[[int], int]
) -> tuple[InferRequest, tuple[LentTensorRef, ...]]:
    """A request's header, unpacked, whose inputs may lie in the header's own block, with reference 0, or in others.

    `nbytes_of` returns a block's size in bytes, 0 where it is gone. A tensor on a GPU has ON_GPU as its reference, or
    PLACED in its datatype. Raises InternalError for tensors outside.
    """

    layout, packed = split_header(header)
    inputs, outputs = unpack_lent_layout(layout, nbytes_of)
    id_, parameters, sequence, headers = unpack_options(packed)
    return InferRequest(id_, (), outputs, parameters, sequence, (), headers), inputs


def open_lent_request(
    header: bytes, open_block: Callable[[int], memoryview | None]
) -> tuple[InferRequest, tuple[LentTensorRef, ...], dict[int, memoryview]]:
    """A request and its inputs like `unpack_lent_request`, and the blocks in which inputs lie, by reference.
    `open_block` opens a block; it returns None if the block is gone."""
    blocks: dict[int, memoryview] = {}

    def nbytes_of(ref: int) -> int:
        block = open_block(ref)
        if block is None:
            return 0
        blocks[ref] = block
        return len(block)

    return *unpack_lent_request(header, nbytes_of), blocks


def unpack_lent_layout(
    layout: bytes, nbytes_of: Callable[[int], int]
) -> tuple[tuple[LentTensorRef, ...], tuple[str, ...]]:
    """Inputs and requested outputs of a layout as `split_header` returns it; inputs and `nbytes_of` are those of
    `unpack_lent_request`. Raises InternalError where it is damaged."""
    rows, outputs = unpack_layout(layout)
    try:
        inputs = []
        for row in rows:
            (lender,) = _checked(tuple, row)[5:] or (0,)
            if _is_on_gpu(row):
                inputs.append(LentTensorRef(*_tensor_ref(row[:5], row[3] + row[4]), ON_GPU))
                continue
            inputs.append(LentTensorRef(*_tensor_or_place(row[:5], nbytes_of(_checked(int, lender))), lender))
        return tuple(inputs), outputs
    except (ValueError, TypeError) as error:
        raise _damaged(error) from error


def _is_on_gpu(row: Any) -> bool:
    return type(row) is tuple and len(row) == 6 and type(row[5]) is bytes


def _damaged(error: Exception) -> InternalError:
    return InternalError(f"a request header in shared memory is damaged: {error}")


def check_sequence(said: Any) -> Sequence:
    """The sequence in a header. Raises TypeError or ValueError where it is malformed."""
    correlation_id, flags = _checked(tuple, said)
    if type(correlation_id) is not str:
        _checked(int, correlation_id)
    return correlation_id, _checked(int, flags)


def _check_headers(said: Any) -> RecordedHeaders:
    return tuple([(_checked(str, name), _checked(str, value)) for name, value in _checked(tuple, said)])


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


def unpack_placed_response(header: bytes | memoryview, block_nbytes: int) -> InferResponse:
    """Like `unpack_response`, for readers of tensors on a GPU: of a tensor with PLACED in its datatype, the block has
    the place."""
    try:
        outputs, parameters = msgpack.unpackb(header, use_list=False, raw=False)
        refs = tuple([_tensor_or_place(row, block_nbytes) for row in _checked(tuple, outputs)])
        return InferResponse(refs, check_parameters(parameters))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InternalError(f"a response header in shared memory is damaged: {error}") from error


def _tensor_or_place(row: Any, block_nbytes: int) -> TensorRef:
    """A tensor whose bytes, or whose place on a GPU, lie inside the block."""
    name, datatype, shape, offset, nbytes = row
    if type(datatype) is not int or not datatype & PLACED:
        return _tensor_ref(row, block_nbytes)
    if type(nbytes) is not int or nbytes <= 0:
        raise ValueError(f"tensor {name!r} on a GPU has {nbytes!r} bytes")
    _tensor_ref((name, datatype ^ PLACED, shape, offset, PLACED_NBYTES), block_nbytes)
    return TensorRef(name, datatype, shape, offset, nbytes)


def _tensor_refs(rows: Any, block_nbytes: int) -> tuple[TensorRef, ...]:
    return tuple([_tensor_ref(row, block_nbytes) for row in _checked(tuple, rows)])


def _tensor_ref(row: Any, block_nbytes: int) -> TensorRef:
    name, datatype, shape, offset, nbytes = row
    # Types are checked first: 11.0 and True equal numbers that BY_WIRE has, and 0.0 would pass as an offset.
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
