"""Opening and encoding tensors."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.datatypes import BF16, BYTES, FP32, INT64, Datatype
from shoal.errors import InternalError
from shoal.model_config.signature import TensorSpec
from shoal.workers.tensors import Array, encode_strings, open_strings, open_tensor


def spec(datatype: Datatype) -> TensorSpec:
    return TensorSpec("INPUT0", datatype, (-1,), None, optional=False, ragged=False, label_filename="")


def read_only(data: bytes) -> memoryview:
    return memoryview(data)


def opened(*arguments: Any) -> Array:
    array = open_tensor(*arguments)
    assert not isinstance(array, memoryview)
    return array


def test_a_tensor_is_a_view_of_the_block_and_cannot_be_written() -> None:
    block = bytearray(64)
    array = opened(spec(FP32), (1, 3), 16, 12, memoryview(block).toreadonly())
    block[16:28] = struct.pack("<3f", 1.5, -2.0, 3.0)
    assert array.tolist() == [[1.5, -2.0, 3.0]]
    assert not array.flags.writeable


def test_a_tensor_off_its_alignment_is_copied_to_an_aligned_array() -> None:
    block = b"\xff" * 3 + struct.pack("<2q", 5, -6)
    array = opened(spec(INT64), (2,), 3, 16, read_only(block))
    assert array.flags.aligned
    assert array.tolist() == [5, -6]


def test_bf16_is_its_words() -> None:
    array = opened(spec(BF16), (1, 2), 0, 4, read_only(b"\x80\x3f\x00\x40"))
    assert array.tolist() == [[0x3F80, 0x4000]]


def test_strings_become_an_object_array() -> None:
    block = b"????" + b"\x01\x00\x00\x00a" + b"\x00\x00\x00\x00" + b"\x02\x00\x00\x00\xff\x00"
    data = open_tensor(spec(BYTES), (3, 1), 4, 15, read_only(block))
    assert isinstance(data, memoryview)
    array = open_strings("INPUT0", (3, 1), data)
    assert array.tolist() == [[b"a"], [b""], [b"\xff\x00"]]


@pytest.mark.parametrize(
    ("datatype", "shape", "offset", "nbytes"),
    [
        (FP32, (2,), 60, 8),
        (FP32, (2,), -4, 8),
        (FP32, (2,), 0, 4),
        (FP32, (2,), 1 << 70, 8),
        (FP32, (1 << 62, 1 << 62), 0, 8),
        (FP32, (-1,), 0, 8),
        (FP32, (2.0,), 0, 8),
        (FP32, "ab", 0, 8),
        (FP32, (2,), "0", 8),
        (BYTES, (1,), -4, 4),
        (BYTES, (1,), 0, 65),
        (BYTES, (1,), 8, -4),
        (BYTES, (1,), 0, "4"),
        (BYTES, (-1,), 0, 4),
        (BYTES, "a", 0, 4),
    ],
)
def test_what_does_not_fit_the_block_is_an_error(datatype: Datatype, shape: Any, offset: Any, nbytes: Any) -> None:
    block = read_only(bytes(64))
    with pytest.raises(InternalError, match=r"tensor 'INPUT0' of type .* cannot be read from"):
        open_tensor(spec(datatype), shape, offset, nbytes, block)


@pytest.mark.parametrize(("shape", "data"), [((2,), bytes(4)), ((1,), b"\x09\x00\x00\x00"), ((1,), b"\x00\x00")])
def test_strings_that_do_not_fit_their_shape_are_an_error(shape: tuple[int, ...], data: bytes) -> None:
    with pytest.raises(InternalError, match=r"tensor 'INPUT0' of type BYTES and shape .* cannot be read from"):
        open_strings("INPUT0", shape, read_only(data))


@given(st.lists(st.binary(max_size=5)))
def test_encoded_strings_can_be_opened_again(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    data = encode_strings(array)
    assert open_strings("INPUT0", (len(elements),), read_only(data)).tolist() == elements


def test_str_is_encoded_as_utf8_and_rows_in_order() -> None:
    array = np.array([["é", b"x"], ["", "z"]], object)
    assert encode_strings(array) == (b"\x02\x00\x00\x00\xc3\xa9\x01\x00\x00\x00x\x00\x00\x00\x00\x01\x00\x00\x00z")


def test_an_element_that_is_no_string_is_its_text() -> None:
    array = np.array([b"a", 5, 0.5, None, bytearray(b"b")], object)
    assert open_strings("X", (5,), read_only(encode_strings(array))).tolist() == [
        b"a", b"5", b"0.5", b"None", b"bytearray(b'b')",
    ]  # fmt: skip


def test_half_a_surrogate_pair_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_strings(np.array(["\ud800"], object))
