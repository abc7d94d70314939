"""What a test gives for a tensor becomes what a client would send."""

from typing import Any

import numpy as np
import pytest

from shoal.datatypes import BF16, BOOL, BYTES, FP16, FP32, INT32, UINT8, UINT64, Datatype
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.testing.tensors import parse_inputs


def parsed(datatype: Datatype, value: Any) -> tuple[str, tuple[int, ...], bytes]:
    spec = TensorSpec("X", datatype, (-1,), None, optional=False, ragged=False, label_filename="")
    [found] = parse_inputs(Signature("m", 0, {"X": spec}, {}), {"X": value})
    assert found.datatype is not None
    return found.datatype.name, found.shape, bytes(found.data)


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        (INT32, [1, -1], ("INT32", (2,), b"\1\0\0\0\xff\xff\xff\xff")),
        (FP32, [1], ("FP32", (1,), b"\0\0\x80\x3f")),
        (FP32, [], ("FP32", (0,), b"")),
        (FP16, [[1.0]], ("FP16", (1, 1), b"\0\x3c")),
        (BF16, [1.0], ("BF16", (1,), b"\x80\x3f")),
        (BF16, np.array([1.0], np.float32), ("BF16", (1,), b"\x80\x3f")),
        (BF16, np.array([0x3F80], np.uint16), ("BF16", (1,), b"\x80\x3f")),
        (BOOL, [True], ("BOOL", (1,), b"\1")),
        (BYTES, "hi", ("BYTES", (), b"\2\0\0\0hi")),
        (BYTES, [b"a", "ü"], ("BYTES", (2,), b"\1\0\0\0a\2\0\0\0\xc3\xbc")),
        (BYTES, np.array(["ab"]), ("BYTES", (1,), b"\2\0\0\0ab")),
        (UINT8, np.array([[1, 2], [3, 4]], np.uint8).T, ("UINT8", (2, 2), b"\1\3\2\4")),
        (FP32, np.array([1], np.int16), ("INT16", (1,), b"\1\0")),  # for the validation to refuse
    ],
)
def test_a_value_becomes_a_tensor(datatype: Datatype, value: Any, expected: tuple[str, tuple[int, ...], bytes]) -> None:
    assert parsed(datatype, value) == expected


@pytest.mark.parametrize(
    ("datatype", "value", "sentence"),
    [
        (INT32, [1.5], r"input 'X': \[1.5\] cannot be a tensor of INT32"),
        (UINT8, [300], r"input 'X': \[300\] cannot be a tensor of UINT8"),
        (UINT8, [-1], "cannot be a tensor of UINT8"),
        (UINT64, [[1], [-1]], "cannot be a tensor of UINT64"),
        (FP32, ["1"], "cannot be a tensor of FP32"),
        (FP32, [[1], [2, 3]], "lists that differ in length"),
        (FP32, np.array([1j]), "input 'X' is an array of complex128, which is no datatype"),
        (BYTES, [1], "an element of input 'X' is int, neither bytes nor text"),
    ],
)
def test_what_is_no_tensor_is_refused(datatype: Datatype, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        parsed(datatype, value)


def test_lists_of_unequal_length_are_refused_for_an_unknown_input_too() -> None:
    with pytest.raises(InvalidArgumentError, match="input 'Y' is a list of lists that differ in length"):
        parse_inputs(Signature("m", 0, {}, {}), {"Y": [[1], [2, 3]]})
