"""shoal/request.py: headers in msgpack written by hand, and headers from a process that lies."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import InternalError
from shoal.request import (
    NO_OPTIONS,
    ON_GPU,
    CudaTarget,
    CudaTensorRef,
    InferRequest,
    InferResponse,
    LentTensorRef,
    TensorRef,
    layout_head,
    pack_request,
    pack_response,
    split_header,
    unpack_layout,
    unpack_lent_request,
    unpack_options,
    unpack_request,
    unpack_response,
    unpack_targets,
)
from shoal.star.request_digest import request_content

BLOCK_NBYTES = 4096
REQUEST = InferRequest(
    id="r7",
    inputs=(TensorRef("IN", 11, (1, 4), 64, 16), TensorRef("TEXT", 13, (2,), 128, 300)),
    requested_outputs=("OUT",),
    parameters={"k": 1, "b": True},
)
REQUEST_BYTES = (
    b"\x1f\0\0\0"
    b"\x92"
    b"\x92\x95\xa2IN\x0b\x92\x01\x04\x40\x10"
    b"\x95\xa4TEXT\x0d\x91\x02\xcc\x80\xcd\x01\x2c"
    b"\x91\xa3OUT"
    b"\x92"
    b"\xa2r7"
    b"\x82\xa1k\x01\xa1b\xc3"
)
RESPONSE = InferResponse(outputs=(TensorRef("OUT", 9, (0, 3), 4096, 0),), parameters={"s": "é", "f": 0.5})
RESPONSE_BYTES = (
    b"\x92\x91\x95\xa3OUT\x09\x92\x00\x03\xcd\x10\x00\x00\x82\xa1s\xa2\xc3\xa9\xa1f\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00"
)


def test_the_bytes_of_a_request() -> None:
    assert pack_request(REQUEST) == REQUEST_BYTES
    assert unpack_request(memoryview(REQUEST_BYTES), BLOCK_NBYTES) == REQUEST


@pytest.mark.parametrize("nbytes", [1, 31, 32, 64, 65, 255, 256])
def test_an_id_without_other_options_is_read_however_long_it_is(nbytes: int) -> None:
    id_ = "é" + "x" * (nbytes - 2) if nbytes > 1 else "x"
    assert unpack_options(packed([id_, {}])) == (id_, {}, (0, 0), ())


@pytest.mark.parametrize(
    "options",
    [b"\x92\xa1\xff\x80", b"\x92\xa2x\x80", b"\x92\xa1x\x81", b"\x92\xa1x\xa0", b"\x93\xa1x\x80", b"\x92\xc4\x01x\x80"],
    ids=["no UTF-8", "too short", "half a map", "no map", "three members", "bytes"],
)
def test_damaged_options_of_an_id_alone_are_refused(options: bytes) -> None:
    with pytest.raises(InternalError, match="a request header in shared memory is damaged"):
        unpack_options(options)


def test_the_bytes_of_a_response() -> None:
    assert pack_response(RESPONSE) == RESPONSE_BYTES
    assert unpack_response(memoryview(RESPONSE_BYTES), BLOCK_NBYTES) == RESPONSE


def test_what_is_read_are_tuples_of_the_same_kinds() -> None:
    request = unpack_request(memoryview(REQUEST_BYTES), BLOCK_NBYTES)
    assert type(request) is InferRequest
    assert [type(tensor) for tensor in request.inputs] == [TensorRef, TensorRef]
    assert type(request.inputs[0].shape) is tuple
    assert type(request.requested_outputs) is tuple


REFS = st.builds(
    TensorRef,
    st.text(),
    st.integers(1, 14),
    st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    st.integers(0, 2048),
    st.integers(0, 2048),
)
PARAMETERS = st.dictionaries(
    st.text(), st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)
)


SEQUENCES = st.tuples(st.text() | st.integers(0, 2**64 - 1), st.integers(0, 3))


@given(
    st.builds(
        InferRequest,
        st.text(),
        st.lists(REFS).map(tuple),
        st.lists(st.text()).map(tuple),
        PARAMETERS,
        SEQUENCES,
        st.just(()),
    )
)
def test_any_request_survives_its_block(request: InferRequest) -> None:
    assert unpack_request(memoryview(pack_request(request)), BLOCK_NBYTES) == request


@given(st.builds(InferResponse, st.lists(REFS).map(tuple), PARAMETERS))
def test_any_response_survives_its_block(response: InferResponse) -> None:
    assert unpack_response(memoryview(pack_response(response)), BLOCK_NBYTES) == response


# -- What a lying process may write: every value of a header is what its type says, or the header is refused -----------

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
ROW = st.lists(JUNK, max_size=6) | st.tuples(
    st.text() | JUNK, st.integers(0, 15) | JUNK, st.lists(st.integers()) | JUNK, st.integers(0, 5000) | JUNK,
    st.integers(0, 5000) | JUNK,
)  # fmt: skip
NOISE = st.binary(max_size=200)


def lies(*fields: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Well-formed msgpack of nearly the right form."""
    return st.tuples(*(field | JUNK for field in fields)).map(pack_or_nothing)


def pack_or_nothing(value: Any) -> bytes:
    try:
        return packed(value)
    except (OverflowError, ValueError):
        return b""


def packed(value: Any) -> bytes:
    header: bytes | None = msgpack.packb(value)
    assert header is not None
    return header


def joined(layout: bytes, options: bytes) -> bytes:
    """A request's header."""
    return layout_head(len(layout)) + layout + options


def assert_tensors_are_believable(tensors: tuple[TensorRef, ...]) -> None:
    for tensor in tensors:
        assert type(tensor) is TensorRef
        assert type(tensor.name) is str
        assert type(tensor.datatype) is int
        assert 1 <= tensor.datatype <= 14
        assert type(tensor.shape) is tuple
        assert all(type(dim) is int and dim >= 0 for dim in tensor.shape)
        assert type(tensor.offset) is type(tensor.nbytes) is int
        assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= BLOCK_NBYTES


def assert_parameters_are_believable(parameters: dict[str, Any]) -> None:
    assert type(parameters) is dict
    for key, value in parameters.items():
        assert type(key) is str
        assert type(value) in {str, int, float, bool}


@given(
    NOISE
    | st.builds(
        joined,
        lies(st.lists(ROW), st.lists(st.text())),
        lies(st.text(), PARAMETERS) | lies(st.text(), PARAMETERS, JUNK),
    )
)
@example(b"")
@example(b"\xff\xff\xff\xff")  # a layout of 2^32 - 1 bytes that are not there
@example(joined(b"\xdd\xff\xff\xff\xff", NO_OPTIONS))  # an array of 2^32 - 1 elements that are not there
@example(joined(b"\x91" * 100_000, NO_OPTIONS))  # deeper than any stack
@example(joined(packed([[], []]), b"\x91" * 100_000))
@example(joined(packed([[], []]), b""))
@example(REQUEST_BYTES + b"\xc0")
def test_a_damaged_request_header_is_an_internal_error_or_believable(header: bytes) -> None:
    try:
        request = unpack_request(memoryview(header), BLOCK_NBYTES)
    except InternalError as error:
        assert str(error).startswith("a request header in shared memory is damaged: ")
        return
    assert type(request.id) is str
    assert_tensors_are_believable(request.inputs)
    assert type(request.requested_outputs) is tuple
    assert all(type(name) is str for name in request.requested_outputs)
    assert_parameters_are_believable(request.parameters)


@given(lies(st.lists(ROW), st.lists(st.text())))
def test_a_damaged_header_with_lent_tensors_is_an_internal_error_or_believable(layout: bytes) -> None:
    try:
        _, tensors = unpack_lent_request(joined(layout, NO_OPTIONS), lambda _ref: BLOCK_NBYTES)
    except InternalError as error:
        assert str(error).startswith("a request header in shared memory is damaged: ")
        return
    assert_tensors_are_believable(tuple([TensorRef(*tensor[:5]) for tensor in tensors]))
    assert all(type(tensor.ref) is int for tensor in tensors)


@pytest.mark.parametrize("row", [{}, {"IN": 1}, "IN", 7, None])
def test_a_lent_tensor_that_is_no_row_is_refused_by_its_type(row: Any) -> None:
    # From Python 3.12 on a dict looks a slice up, and raises KeyError.
    header = joined(packed([[row], []]), NO_OPTIONS)
    with pytest.raises(InternalError, match=f"{type(row).__name__} in place of tuple"):
        unpack_lent_request(header, lambda _ref: BLOCK_NBYTES)


@given(NOISE | lies(st.lists(ROW), PARAMETERS))
@example(b"\x92\x91\x95\xa3OUT\xcb\x40\x22\x00\x00\x00\x00\x00\x00\x91\x03\x00\x00\x80")  # datatype 9.0
@example(b"\x92\x91\x95\xa3OUT\x09\x91\x03\xca\x00\x00\x00\x00\x00\x80")  # offset 0.0
@example(b"\x92\x91\x95\xa3OUT\xc3\x91\x03\x00\x00\x80")  # datatype True
@example(b"\x92\x91\x95\xa3OUT\x09\x91\xff\x00\x00\x80")  # a dimension of -1
@example(b"\x92\x91\x95\xa3OUT\x09\xc0\x00\x00\x80")  # no shape
@example(b"\x92\x91\x95\xc0\x09\x91\x03\x00\x00\x80")  # no name
@example(b"\x92\x90\xc0")  # no parameters
@example(b"\x92\x90\x81\xa1k\x90")  # a parameter that is a list
@example(b"\x92\xa0\x80")  # text where the outputs should be
def test_a_damaged_response_header_is_an_internal_error_or_believable(header: bytes) -> None:
    try:
        response = unpack_response(memoryview(header), BLOCK_NBYTES)
    except InternalError as error:
        assert str(error).startswith("a response header in shared memory is damaged: ")
        return
    assert_tensors_are_believable(response.outputs)
    assert_parameters_are_believable(response.parameters)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(4096, 1), (4097, 0), (0, 4097), (-1, 1), (0, -1), (64, -64), (2**64 - 1, 1), (1, 2**64 - 1)]
)
@pytest.mark.parametrize("unpack", [unpack_request, unpack_response])
def test_a_tensor_outside_its_block_is_refused(
    unpack: Callable[[memoryview, int], object], offset: int, nbytes: int
) -> None:
    tensors = [["IN", 11, [1], offset, nbytes]]
    header = joined(packed([tensors, []]), NO_OPTIONS) if unpack is unpack_request else packed([tensors, {}])
    with pytest.raises(InternalError) as caught:
        unpack(memoryview(header), BLOCK_NBYTES)
    assert str(caught.value).endswith(f"tensor 'IN' of type 11 at {offset} + {nbytes} of 4096 bytes")


@pytest.mark.parametrize("wire", [0, 15, -1, 2**63])
def test_an_unknown_datatype_is_refused(wire: int) -> None:
    header = packed([[["OUT", wire, [1], 0, 4]], {}])
    with pytest.raises(InternalError, match="damaged: tensor 'OUT' of type"):
        unpack_response(memoryview(header), BLOCK_NBYTES)


PLACE = bytes(range(76))
ON_A_GPU = REQUEST._replace(
    inputs=(REQUEST.inputs[0], CudaTensorRef("FAR", 11, (2,), 8, 8, PLACE)),  # type: ignore[arg-type]
    targets=(CudaTarget("OUT", PLACE, 16, 4),),
)


def test_tensors_on_a_gpu_are_named_beside_the_others() -> None:
    header = pack_request(ON_A_GPU)
    layout, _ = split_header(header)
    assert unpack_targets(layout) == ON_A_GPU.targets
    assert unpack_targets(split_header(REQUEST_BYTES)[0]) == ()
    inputs, outputs = unpack_layout(layout)
    assert (inputs, outputs) == (tuple(map(tuple, ON_A_GPU.inputs)), ("OUT",))
    near = ON_A_GPU._replace(inputs=REQUEST.inputs[:1], targets=())
    assert unpack_request(memoryview(header), BLOCK_NBYTES) == near  # what a front end traces: it cannot read the rest
    _, lent = unpack_lent_request(header, lambda _ref: BLOCK_NBYTES)
    assert lent[1] == LentTensorRef("FAR", 11, (2,), 8, 8, ON_GPU)
    assert request_content(header, lambda _ref: memoryview(bytes(BLOCK_NBYTES))) is None  # equal to no other


@pytest.mark.parametrize(
    "targets",
    [[["OUT", PLACE, 16]], [["OUT", "place", 16, 4]], [[5, PLACE, 16, 4]], [["OUT", PLACE, -1, 4]], "OUT", [5], 7],
)
def test_targets_that_are_none(targets: Any) -> None:
    layout: Any = msgpack.packb([[], [], targets])
    with pytest.raises(InternalError, match=r"^a request header in shared memory is damaged: "):
        unpack_targets(layout_head(len(layout)) + layout)
