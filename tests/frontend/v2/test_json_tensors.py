"""JSON data to bytes and back: strict types, wrapping, any nesting, text with the fewest digits."""

import math
import struct
from typing import Any

import orjson
import pytest

from shoal.datatypes import BY_NAME
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.frontend.v2.json_tensors import checked_num_elements, decode_data, encode_data

MISCOUNTED = (
    "Unable to parse 'data': Shape does not match true shape of 'data' field. "
    "Input 'IN' has %d elements by its shape, but %d in its data"
)
NOT = "Unable to parse 'data': attempt to access JSON non-"
LIMIT = 1 << 26


def encoded(name: str, num_elements: int, view: bytes) -> bytes:
    return orjson.dumps(encode_data("OUT", BY_NAME[name], num_elements, memoryview(view)))


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [1, 2.5], b"\0\0\x80\x3f\0\0\x20\x40"),
        ("FP32", [[1], [[2.5]]], b"\0\0\x80\x3f\0\0\x20\x40"),
        ("FP32", [1, [2.5]], b"\0\0\x80\x3f\0\0\x20\x40"),
        ("FP32", [1e300, -1e300], b"\0\0\x80\x7f\0\0\x80\xff"),
        ("FP32", [math.inf, 10**30], b"\0\0\x80\x7f" + struct.pack("<f", 1e30)),
        ("FP64", [0.1, 2**64 - 1], struct.pack("<dd", 0.1, 2.0**64)),
        ("INT32", [-1, 2**31], b"\xff\xff\xff\xff\0\0\0\x80"),
        ("INT8", [300, -129], b"\x2c\x7f"),
        ("INT64", [-(2**63), 2**63 - 1], b"\0\0\0\0\0\0\0\x80\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("UINT8", [256, 255], b"\0\xff"),
        ("UINT64", [2**64 - 1], b"\xff" * 8),
        ("BOOL", [True, [False, True]], b"\1\0\1"),
        ("BYTES", ["a", ["", "é"]], b"\1\0\0\0a\0\0\0\0\2\0\0\0\xc3\xa9"),
        ("INT32", [[], []], b""),
        ("FP16", [], b""),
    ],
)
def test_decodes(datatype: str, data: list[Any], expected: bytes) -> None:
    count = {"BYTES": 3, "BOOL": 3}.get(datatype, len(expected) // (BY_NAME[datatype].itemsize or 1))
    view, num_elements = decode_data("IN", BY_NAME[datatype], count, data, LIMIT)
    assert (bytes(view), num_elements) == (expected, count)


@pytest.mark.parametrize("data", [[], [[]], [1.0], ["x", None]])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "FP16", "BYTES"])
def test_data_of_no_elements_are_not_looked_at(datatype: str, data: list[Any]) -> None:
    view, num_elements = decode_data("IN", BY_NAME[datatype], 0, data, LIMIT)
    assert (bytes(view), num_elements) == (b"", 0)


@pytest.mark.parametrize(
    ("datatype", "count", "data", "sentence"),
    [
        ("FP32", 2, [1.0], MISCOUNTED % (2, 1)),
        ("FP32", 1, [1.0, 2.0], MISCOUNTED % (1, 2)),
        ("FP32", 1, [1.0, "x"], MISCOUNTED % (1, 2)),
        ("FP32", 2, [1.0, "x"], NOT + "number as double"),
        ("FP32", 2, ["1.0", 1], NOT + "number as double"),
        ("FP32", 3, ["1.0", 1], NOT + "number as double"),
        ("FP32", 2, [True, 1.0], NOT + "number as double"),
        ("FP32", 1, [None], NOT + "number as double"),
        ("FP32", 1, [{}], NOT + "number as double"),
        ("FP64", 1, [10**400], NOT + "number as double"),
        ("INT32", 2, [1, 1.0], NOT + "signed-integer as signed-integer"),
        ("INT32", 1, [math.nan], NOT + "signed-integer as signed-integer"),
        ("INT32", 1, [True], NOT + "signed-integer as signed-integer"),
        ("INT8", 1, [2**63], NOT + "signed-integer as signed-integer"),
        ("INT64", 1, [1e30], NOT + "signed-integer as signed-integer"),
        ("UINT8", 2, [0, -1], NOT + "unsigned-integer as unsigned-integer"),
        ("UINT64", 1, [-1], NOT + "unsigned-integer as unsigned-integer"),
        ("BOOL", 1, [1], NOT + "boolean as boolean"),
        ("BOOL", 1, ["true"], NOT + "boolean as boolean"),
        ("BYTES", 1, [1], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("BYTES", 1, [None], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    ],
)
def test_refuses_with_500(datatype: str, count: int, data: list[Any], sentence: str) -> None:
    with pytest.raises(InternalError) as caught:
        decode_data("IN", BY_NAME[datatype], count, data, LIMIT)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("datatype", "sentence"),
    [
        ("FP16", "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN"),
        ("BF16", "receiving BF16 data via JSON is not supported. Please use the binary data format for input IN"),
        ("STRING", "invalid datatype for input IN"),
    ],
)
def test_refuses_datatypes_that_json_cannot_carry(datatype: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_data("IN", BY_NAME.get(datatype), 1, [1], LIMIT)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("datatype", "data", "nbytes"), [("FP32", [0] * 4, 16), ("BYTES", ["abcdefgh", ""], 16)])
def test_limits_the_size_of_a_tensor(datatype: str, data: list[Any], nbytes: int) -> None:
    decode_data("IN", BY_NAME[datatype], len(data), data, nbytes)
    with pytest.raises(InvalidArgumentError) as caught:
        decode_data("IN", BY_NAME[datatype], len(data), data, nbytes - 1)
    assert str(caught.value) == (
        "JSON input 'IN' has a byte_size (16 bytes) that exceeds the maximum allowed value of 15 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_counts_elements_in_python_integers() -> None:
    assert checked_num_elements("IN", (), 4) == 1
    assert checked_num_elements("IN", (2**62, 0, 2**62), 4) == 0
    for shape, itemsize, sentence in (
        (
            (16, 2**60 + 2),
            4,
            "invalid shape for input 'IN': shape [16,1152921504606846978] causes total element count "
            "to exceed maximum size of 9223372036854775807",
        ),
        (
            (2**63,),
            1,
            "invalid shape for input 'IN': shape [9223372036854775808] contains one or more invalid dimensions",
        ),
        ((4, 2**60 + 2), 4, "byte size overflow for input 'IN' with shape [4,1152921504606846978]"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            checked_num_elements("IN", shape, itemsize)
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("datatype", "count", "view", "text"),
    [
        ("FP32", 3, struct.pack("<3f", 0.1, 1, -2.5), b"[0.1,1.0,-2.5]"),
        ("FP32", 5, struct.pack("<5f", math.nan, 1, math.inf, -math.inf, 0), b"[NaN,1.0,Infinity,-Infinity,0.0]"),
        ("FP64", 2, struct.pack("<2d", 0.1, math.nan), b"[0.1,NaN]"),
        ("INT8", 2, b"\xff\x02", b"[-1,2]"),
        ("UINT64", 1, b"\xff" * 8, b"[18446744073709551615]"),
        ("BOOL", 3, b"\0\1\2", b"[false,true,true]"),
        ("BYTES", 2, b"\1\0\0\0\"\2\0\0\0\xc3\xa9", b'["\\"","\xc3\xa9"]'),
        ("BYTES", 2, b"\1\0\0\0\xff\3\0\0\0\x1f\n\\", b'["\xff","\\u001F\\n\\\\"]'),
        ("FP32", 0, b"", b"[]"),
        ("BYTES", 0, b"", b"[]"),
    ],
)  # fmt: skip
def test_encodes(datatype: str, count: int, view: bytes, text: bytes) -> None:
    assert encoded(datatype, count, view) == text


def test_encodes_a_view_that_is_off_its_alignment() -> None:
    assert encoded("FP64", 1, memoryview(b"\0" + struct.pack("<d", 0.1))[1:]) == b"[0.1]"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("datatype", "count", "view", "status", "sentence"),
    [
        ("FP32", 2, b"\0" * 4, 500, "output tensor shape does not match size of output for 'OUT'"),
        ("BOOL", 1, b"\0\0", 500, "output tensor shape does not match size of output for 'OUT'"),
        ("BYTES", 1, b"\2\0\0\0a", 500, "output tensor shape does not match size of output for 'OUT'"),
        ("BYTES", 2, b"\1\0\0\0a", 500, "output tensor shape does not match size of output for 'OUT'"),
        ("FP16", 1, b"\0\0", 400, "sending FP16 data via JSON is not supported. Please use the "
         "binary data format for output"),
        ("BF16", 1, b"\0\0", 400, "sending BF16 data via JSON is not supported. Please use the "
         "binary data format for output"),
    ],
)  # fmt: skip
def test_refuses_to_encode(datatype: str, count: int, view: bytes, status: int, sentence: str) -> None:
    with pytest.raises(ShoalError) as caught:
        encoded(datatype, count, view)
    assert (caught.value.http_status, str(caught.value)) == (status, sentence)
