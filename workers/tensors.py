"""Tensors in memory ↔ arrays: opening those in a client's block, encoding strings.

Pure. Runs in a worker. What lies in a client's block is looked at in place and read-only; nothing here writes to it.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BYTES, Datatype, decode_bytes_tensor, encode_bytes_tensor
from shoal.errors import InternalError
from shoal.model_config.signature import TensorSpec

Array: TypeAlias = NDArray[Any]
#: Name, datatype and array of an output: BYTES are an array of bytes or str, BF16 is one of uint16.
Output: TypeAlias = tuple[str, Datatype, Array]


def open_tensor(spec: TensorSpec, shape: tuple[int, ...], offset: int, nbytes: int, block: memoryview) -> Array:
    """The tensor as a read-only array: a view of the block, or a copy where it is off its element alignment.

    BYTES become an object array of bytes. Raises InternalError where shape, size and block do not fit together.
    """
    dtype = spec.datatype.dtype
    try:
        # numpy would take a negative offset and read before the block.
        if not 0 <= offset <= offset + nbytes <= len(block):
            raise ValueError("it lies outside")
        if spec.datatype is BYTES:
            return _open_bytes(shape, block[offset : offset + nbytes])
        array: Array = np.ndarray(shape, dtype, block, offset)
        if array.nbytes != nbytes:
            raise ValueError(f"the shape needs {array.nbytes} bytes")
    except (TypeError, ValueError, OverflowError) as error:
        raise InternalError(
            f"tensor '{spec.name}' of type {spec.datatype.name} and shape {shape} cannot be read from {nbytes} bytes "
            f"at {offset} of a block of {len(block)} bytes: {error}"
        ) from error
    # A block starts at a page, so the offset alone decides. Frameworks read elements, not bytes.
    return array if offset % dtype.itemsize == 0 else array.copy()


def _open_bytes(shape: tuple[int, ...], data: memoryview) -> Array:
    elements = decode_bytes_tensor(data)
    array: Array = np.empty(len(elements), BYTES.dtype)
    array[:] = elements
    return array.reshape(shape)


def encode_strings(array: Array) -> bytes:
    """An array of bytes or str elements in the wire form of a BYTES tensor; str as UTF-8.

    Raises TypeError for an element that is neither.
    """
    return encode_bytes_tensor(_encoded(array.ravel().tolist()))


def _encoded(elements: Iterable[object]) -> Iterable[bytes]:
    for element in elements:
        if isinstance(element, bytes):
            yield element
        elif isinstance(element, str):
            yield element.encode()
        else:
            raise TypeError(f"an element of a BYTES tensor is {type(element).__name__}, not bytes or str")
