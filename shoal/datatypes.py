"""Triton's datatypes, FP32 … BYTES, beside their config names, sizes and numpy forms; the BYTES codec.

Pure; used in every process, and without numpy in those that need names and sizes only. A BYTES tensor on the wire is,
per element, a little-endian u32 length and that many bytes (Triton's binary tensor data extension). BF16 has no numpy
form and is carried as its 16-bit words.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

_LENGTH = struct.Struct("<I")

#: The largest dimension, and the largest tensor in bytes, that are accepted (ours: no slab is nearly that large).
MAX_DIM = 2**31 - 1
MAX_TENSOR_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype under its three names.

    `wire` is the datatype's number in a msgpack header (the TYPE_ enum of ModelConfig), `itemsize` is 0 for BYTES, and
    `dtype` is the numpy type of its elements, `typecode` in numpy's spelling: uint16 words for BF16, object for BYTES.
    """

    name: str
    config_name: str
    wire: int
    itemsize: int
    typecode: str
    dtype: "np.dtype[Any]" = field(init=False, repr=False, compare=False)


class _UnreadDtype:
    """Stands in for `Datatype.dtype` until the first read. The read imports numpy, which takes 80 ms of CPU and starts
    BLAS's threads, and sets the dtypes of all datatypes; from then on they are ordinary attributes."""

    def __get__(self, datatype: Datatype, _kind: object = None) -> "np.dtype[Any]":
        import numpy as np

        for each in ALL:
            _DTYPE.__set__(each, np.dtype(each.typecode))
        Datatype.dtype = _DTYPE  # type: ignore[misc]
        return datatype.dtype


_DTYPE: Any = Datatype.__dict__["dtype"]
Datatype.dtype = _UnreadDtype()  # type: ignore[assignment, misc]  # in place of the slot


def _datatype(name: str, wire: int, typecode: str, config_name: str = "") -> Datatype:
    itemsize = int(typecode[2:] or 0)
    return Datatype(name, config_name or f"TYPE_{name}", wire, itemsize, typecode)


BOOL = _datatype("BOOL", 1, "|b1")
UINT8 = _datatype("UINT8", 2, "<u1")
UINT16 = _datatype("UINT16", 3, "<u2")
UINT32 = _datatype("UINT32", 4, "<u4")
UINT64 = _datatype("UINT64", 5, "<u8")
INT8 = _datatype("INT8", 6, "<i1")
INT16 = _datatype("INT16", 7, "<i2")
INT32 = _datatype("INT32", 8, "<i4")
INT64 = _datatype("INT64", 9, "<i8")
FP16 = _datatype("FP16", 10, "<f2")
FP32 = _datatype("FP32", 11, "<f4")
FP64 = _datatype("FP64", 12, "<f8")
BYTES = _datatype("BYTES", 13, "O", config_name="TYPE_STRING")
BF16 = _datatype("BF16", 14, "<u2")

ALL: tuple[Datatype, ...] = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)  # fmt: skip
BY_NAME: dict[str, Datatype] = {datatype.name: datatype for datatype in ALL}
BY_CONFIG_NAME: dict[str, Datatype] = {datatype.config_name: datatype for datatype in ALL}
BY_WIRE: dict[int, Datatype] = {datatype.wire: datatype for datatype in ALL}


def num_elements(shape: Sequence[int], limit: int = MAX_TENSOR_BYTES) -> int:
    """The product of `shape` in Python integers (numpy would wrap silently).

    Raises InvalidArgumentError where a dimension is no plain int in [0, MAX_DIM] or the product exceeds `limit`.
    """
    product = 1
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_DIM:
            raise InvalidArgumentError(f"shape {format_shape(shape)} contains one or more invalid dimensions")
        product *= dim
        if product > limit:
            raise InvalidArgumentError(
                f"shape {format_shape(shape)} causes total element count to exceed maximum size of {limit}"
            )
    return product


def checked_nbytes(shape: Sequence[int], itemsize: int, limit: int = MAX_TENSOR_BYTES) -> int:
    """Bytes of a dense tensor of `shape`; raises like `num_elements`, also where the bytes exceed `limit`."""
    nbytes = num_elements(shape, limit) * itemsize
    if nbytes > limit:
        raise InvalidArgumentError(f"shape {format_shape(shape)} causes total byte size to exceed {limit}")
    return nbytes


def format_shape(shape: Sequence[int]) -> str:
    """A shape as Triton prints it: `[1,16]`, no blanks."""
    return "[" + ",".join(map(str, shape)) + "]"


def encode_bytes_tensor(elements: Sequence[bytes]) -> bytes:
    """The wire form of elements in row-major order; takes time linear in the total size."""
    pieces = [b""] * (2 * len(elements))
    pieces[0::2] = map(_LENGTH.pack, map(len, elements))
    pieces[1::2] = elements
    return b"".join(pieces)


class TruncatedBytesError(ValueError):
    """A BYTES tensor ends inside a length (`needed` is 4) or inside an element of `needed` bytes."""

    def __init__(self, num_decoded: int, needed: int, available: int) -> None:
        super().__init__(f"element {num_decoded} needs {needed} bytes, {available} are left")
        self.num_decoded = num_decoded
        self.needed = needed
        self.available = available


def count_bytes_tensor(buffer: memoryview) -> int:
    """The number of elements in the wire form. Raises TruncatedBytesError where it is truncated."""
    offset, end, count = 0, len(buffer), 0
    unpack_from = _LENGTH.unpack_from
    while offset < end:
        if end - offset < 4:
            raise TruncatedBytesError(count, 4, end - offset)
        (length,) = unpack_from(buffer, offset)
        offset += 4
        if end - offset < length:
            raise TruncatedBytesError(count, length, end - offset)
        offset += length
        count += 1
    return count


def decode_bytes_tensor(buffer: memoryview) -> list[bytes]:
    """The elements of the wire form, each a copy. Raises TruncatedBytesError where it is truncated."""
    data = buffer.tobytes()  # slices of bytes, not of a view: 2.2k instructions an element instead of 4.1k
    elements: list[bytes] = []
    append, unpack_from = elements.append, _LENGTH.unpack_from
    offset, end = 0, len(data)
    while offset + 4 <= end:
        start = offset + 4
        offset = start + unpack_from(data, offset)[0]
        append(data[start:offset])
    if offset != end:
        count_bytes_tensor(buffer)  # raises TruncatedBytesError
    return elements
