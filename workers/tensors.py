"""Arrays over the tensors in a client's block, and the wire form of arrays of strings.

Pure. Runs in a worker. A tensor in a client's block is read in place; nothing here writes to a block.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BYTES, Datatype, decode_bytes_tensor, encode_bytes_tensor, num_elements
from shoal.errors import InternalError, InvalidArgumentError
from shoal.model_config.signature import TensorSpec

Array: TypeAlias = NDArray[Any]
#: Name, datatype and array of an output: the array of BYTES has bytes or str as elements, that of BF16 uint16.
Output: TypeAlias = tuple[str, Datatype, Array]


def open_tensor(
    spec: TensorSpec, shape: tuple[int, ...], offset: int, nbytes: int, block: memoryview
) -> Array | memoryview:
    """A tensor of `nbytes` bytes at `offset` in a block, as a read-only array: a view of the block, or a copy if the
    offset is not aligned to the elements.

    A BYTES tensor is returned in wire form, which `open_strings` turns into an array, since not every model uses it.
    Raises InternalError if shape, size and block do not fit together.
    """
    dtype = spec.datatype.dtype
    try:
        # Checked here, since numpy would take a negative offset and read memory before the block.
        if not 0 <= offset <= offset + nbytes <= len(block):
            raise ValueError("it lies outside")
        if spec.datatype is BYTES:
            num_elements(shape)
            return block[offset : offset + nbytes]
        array: Array = np.ndarray(shape, dtype, block, offset)
        if array.nbytes != nbytes:
            raise ValueError(f"the shape needs {array.nbytes} bytes")
    except (TypeError, ValueError, OverflowError, InvalidArgumentError) as error:
        raise InternalError(
            f"tensor '{spec.name}' of type {spec.datatype.name} and shape {shape} cannot be read from {nbytes} bytes "
            f"at {offset} of a block of {len(block)} bytes: {error}"
        ) from error
    # Frameworks read whole elements, which must be aligned. A block starts at a page, so the offset alone decides.
    return array if offset % dtype.itemsize == 0 else array.copy()


def open_strings(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """A BYTES tensor as an object array of bytes. Raises InternalError if shape and data do not agree."""
    try:
        elements = decode_bytes_tensor(data)
        array: Array = np.empty(len(elements), BYTES.dtype)
        array[:] = elements
        return array.reshape(shape)
    except ValueError as error:
        raise InternalError(
            f"tensor '{name}' of type BYTES and shape {shape} cannot be read from {len(data)} bytes: {error}"
        ) from error


def encode_strings(array: Array) -> bytes:
    """An array in the wire form of a BYTES tensor: bytes as they are, any other element as its text in UTF-8, as in
    Triton's Python backend.

    Raises UnicodeEncodeError for a text that UTF-8 cannot represent (half of a surrogate pair).
    """
    elements = array.ravel().tolist()
    kinds = set(map(type, elements))
    if kinds == {str}:
        elements = list(map(str.encode, elements))  # half the time that it takes to test each element
    elif not kinds <= {bytes}:
        elements = [element if isinstance(element, bytes) else str(element).encode() for element in elements]
    return encode_bytes_tensor(elements)
