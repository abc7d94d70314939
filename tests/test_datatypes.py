"""shoal/datatypes.py: Triton's table of datatypes, sizes in Python integers, and the BYTES codec by hand."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import datatypes
from shoal.datatypes import TruncatedBytesError
from shoal.errors import InvalidArgumentError

# name, name in a model configuration, number of the TYPE_ enum of ModelConfig, bytes, numpy's name
TABLE = [
    ("BOOL", "TYPE_BOOL", 1, 1, "bool"),
    ("UINT8", "TYPE_UINT8", 2, 1, "uint8"),
    ("UINT16", "TYPE_UINT16", 3, 2, "uint16"),
    ("UINT32", "TYPE_UINT32", 4, 4, "uint32"),
    ("UINT64", "TYPE_UINT64", 5, 8, "uint64"),
    ("INT8", "TYPE_INT8", 6, 1, "int8"),
    ("INT16", "TYPE_INT16", 7, 2, "int16"),
    ("INT32", "TYPE_INT32", 8, 4, "int32"),
    ("INT64", "TYPE_INT64", 9, 8, "int64"),
    ("FP16", "TYPE_FP16", 10, 2, "float16"),
    ("FP32", "TYPE_FP32", 11, 4, "float32"),
    ("FP64", "TYPE_FP64", 12, 8, "float64"),
    ("BYTES", "TYPE_STRING", 13, 0, "object"),
    ("BF16", "TYPE_BF16", 14, 2, "uint16"),
]


def test_the_first_dtype_that_is_read_brings_numpy_and_all_others() -> None:
    script = """
import sys
from shoal import datatypes
assert [each.itemsize for each in datatypes.ALL][:4] == [1, 1, 2, 4] and "numpy" not in sys.modules
assert datatypes.FP16.dtype == "float16" and "numpy" in sys.modules
assert type(datatypes.Datatype.dtype).__name__ == "member_descriptor"  # an ordinary slot: read without a call
print(*[each.dtype for each in datatypes.ALL])
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.split() == [row[4] for row in TABLE]


@pytest.mark.parametrize(("name", "config_name", "wire", "itemsize", "dtype"), TABLE, ids=[row[0] for row in TABLE])
def test_each_datatype_is_found_by_its_three_names(
    name: str, config_name: str, wire: int, itemsize: int, dtype: str
) -> None:
    datatype = datatypes.BY_NAME[name]
    assert datatypes.BY_CONFIG_NAME[config_name] is datatype
    assert datatypes.BY_WIRE[wire] is datatype
    assert (datatype.name, datatype.config_name, datatype.wire, datatype.itemsize) == (
        name, config_name, wire, itemsize,
    )  # fmt: skip
    assert datatype.dtype.name == dtype
    assert datatype.dtype.byteorder in "|=<"


def test_there_are_no_other_datatypes() -> None:
    names = {row[0] for row in TABLE}
    assert set(datatypes.BY_NAME) == names
    assert len(datatypes.BY_CONFIG_NAME) == len(datatypes.BY_WIRE) == len(names)


# -- Shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "itemsize", "nbytes"),
    [([], 4, 4), ([1, 16], 4, 64), ([0, 3], 8, 0), ([2**31 - 1], 2, 2**32 - 2), ([3, 5, 7], 1, 105)],
)
def test_bytes_of_a_dense_tensor(shape: list[int], itemsize: int, nbytes: int) -> None:
    assert datatypes.checked_nbytes(shape, itemsize) == nbytes


@pytest.mark.parametrize(
    ("shape", "printed"),
    [
        ([1, -1], "[1,-1]"),
        ([2**31], "[2147483648]"),
        ([2**64], "[18446744073709551616]"),
        ([1.0, 2], "[1.0,2]"),
        ([True], "[True]"),
        (["4"], "[4]"),
        ([np.int64(4)], "[4]"),
    ],
)
def test_what_is_no_dimension_is_refused(shape: list[Any], printed: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        datatypes.num_elements(shape)
    assert str(caught.value) == f"shape {printed} contains one or more invalid dimensions"


@pytest.mark.parametrize("shape", [[2**31 - 1, 2**31 - 1, 4], [2**20, 2**20, 2], [2**16] * 4, [2**31 - 1] * 100])
def test_a_product_that_would_wrap_is_refused(shape: list[int]) -> None:
    with pytest.raises(
        InvalidArgumentError, match="causes total element count to exceed maximum size of 1099511627776"
    ):
        datatypes.num_elements(shape)


def test_the_limit_itself_is_allowed() -> None:
    assert datatypes.num_elements([10, 10], limit=100) == 100
    assert datatypes.checked_nbytes([5, 5], 4, limit=100) == 100
    with pytest.raises(InvalidArgumentError) as count:
        datatypes.num_elements([101], limit=100)
    assert str(count.value) == "shape [101] causes total element count to exceed maximum size of 100"
    with pytest.raises(InvalidArgumentError) as size:
        datatypes.checked_nbytes([5, 6], 4, limit=100)
    assert str(size.value) == "shape [5,6] causes total byte size to exceed 100"


@given(st.lists(st.integers(-3, 2**66), max_size=5), st.integers(0, 8))
def test_a_size_is_exact_or_refused(shape: list[int], itemsize: int) -> None:
    product = 1
    for dim in shape:
        product *= dim
    try:
        nbytes = datatypes.checked_nbytes(shape, itemsize)
    except InvalidArgumentError:
        return
    assert nbytes == product * itemsize <= 2**40
    assert all(0 <= dim < 2**31 for dim in shape)


@pytest.mark.parametrize(("shape", "printed"), [((), "[]"), ((1,), "[1]"), ([1, -1, 16], "[1,-1,16]")])
def test_a_shape_is_printed_without_blanks(shape: list[int], printed: str) -> None:
    assert datatypes.format_shape(shape) == printed


# -- BYTES --------------------------------------------------------------------------------------------------------

ELEMENTS = [b"ab", b"", b"\x00\xff\x00"]
WIRE = b"\x02\x00\x00\x00ab\x00\x00\x00\x00\x03\x00\x00\x00\x00\xff\x00"


def test_a_bytes_tensor_is_lengths_and_bytes() -> None:
    assert datatypes.encode_bytes_tensor(ELEMENTS) == WIRE
    assert datatypes.encode_bytes_tensor([]) == b""
    assert datatypes.encode_bytes_tensor([b"x" * 258])[:5] == b"\x02\x01\x00\x00x"


def test_a_bytes_tensor_is_read_back() -> None:
    assert datatypes.decode_bytes_tensor(memoryview(WIRE)) == ELEMENTS
    assert datatypes.count_bytes_tensor(memoryview(WIRE)) == 3
    assert datatypes.decode_bytes_tensor(memoryview(b"")) == []
    assert datatypes.count_bytes_tensor(memoryview(b"")) == 0


def test_elements_are_copies() -> None:
    buffer = bytearray(WIRE)
    elements = datatypes.decode_bytes_tensor(memoryview(buffer))
    buffer[4:6] = b"zz"
    assert elements[0] == b"ab"


@pytest.mark.parametrize(
    ("cut", "num_decoded", "needed", "available"),
    [
        (b"\x02", 0, 4, 1),
        (b"\x02\x00\x00\x00", 0, 2, 0),
        (b"\x02\x00\x00\x00a", 0, 2, 1),
        (b"\x02\x00\x00\x00ab\x00\x00\x00", 1, 4, 3),
        (b"\x00\x00\x00\x00\xff\xff\xff\xffabc", 1, 4294967295, 3),
    ],
)
@pytest.mark.parametrize("read", [datatypes.decode_bytes_tensor, datatypes.count_bytes_tensor])
def test_a_cut_bytes_tensor_says_what_is_missing(
    read: Any, cut: bytes, num_decoded: int, needed: int, available: int
) -> None:
    with pytest.raises(TruncatedBytesError) as caught:
        read(memoryview(cut))
    error = caught.value
    assert (error.num_decoded, error.needed, error.available) == (num_decoded, needed, available)
    assert str(error) == f"element {num_decoded} needs {needed} bytes, {available} are left"


@given(st.lists(st.binary(max_size=300)))
def test_any_elements_survive_the_wire(elements: list[bytes]) -> None:
    wire = memoryview(datatypes.encode_bytes_tensor(elements))
    assert datatypes.decode_bytes_tensor(wire) == elements
    assert datatypes.count_bytes_tensor(wire) == len(elements)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_read_whole_or_refused(noise: bytes) -> None:
    try:
        elements = datatypes.decode_bytes_tensor(memoryview(noise))
    except TruncatedBytesError as error:
        with pytest.raises(TruncatedBytesError) as caught:
            datatypes.count_bytes_tensor(memoryview(noise))
        assert str(caught.value) == str(error)
        return
    assert b"".join(len(element).to_bytes(4, "little") + element for element in elements) == noise
    assert datatypes.count_bytes_tensor(memoryview(noise)) == len(elements)
