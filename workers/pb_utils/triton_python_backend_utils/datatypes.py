"""Triton's datatypes and numpy's types, by numbers and by names; and the wire form of strings."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BF16, BY_WIRE, BYTES, Datatype, decode_bytes_tensor, encode_bytes_tensor
from triton_python_backend_utils.errors import TritonModelException

_BY_DTYPE: dict[np.dtype[Any], Datatype] = {
    datatype.dtype: datatype for datatype in BY_WIRE.values() if datatype is not BF16
}
#: A configuration's data_type → numpy's type; BF16 has no type in numpy.
TRITON_STRING_TO_NUMPY: dict[str, type[Any]] = {
    datatype.config_name: datatype.dtype.type for datatype in _BY_DTYPE.values()
} | {"TYPE_BOOL": bool}


def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """The datatype of arrays of this dtype. Raises TritonModelException if Triton has none for it."""
    found = _BY_DTYPE.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "SU":
        return BYTES
    native = _BY_DTYPE.get(dtype.newbyteorder("="))
    if native is None:
        raise TritonModelException(f"NumPy dtype is not supported. No datatype has elements like those of '{dtype}'.")
    return native


def triton_to_numpy_type(data_type: int) -> type[Any]:
    """The numpy type of a datatype's number. Raises TritonModelException if there is none."""
    datatype = BY_WIRE.get(data_type)
    if datatype is None or datatype is BF16:
        raise TritonModelException(f"Unsupported triton dtype {data_type!r}")
    return datatype.dtype.type


def numpy_to_triton_type(data_type: Any) -> int:
    """The number of the datatype of a numpy type. Raises TritonModelException if there is none."""
    return datatype_of(np.dtype(data_type)).wire


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """The numpy type of a configuration's data_type."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> Any:
    """The wire form of an array of strings; as in Triton, () for an empty array and None for an array of other
    elements."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OSU":
        return None
    return encode_bytes_tensor(string_elements(input_tensor))


def deserialize_bytes_tensor(encoded_tensor: Any) -> NDArray[Any]:
    """A 1-D array of bytes objects from strings in wire form."""
    return object_array(decode_bytes_tensor(memoryview(encoded_tensor).cast("B")))


def string_elements(array: NDArray[Any]) -> list[bytes]:
    """The elements of an array of strings, in C order; an element that is not bytes becomes its text in UTF-8."""
    elements = array.ravel().tolist()
    if all(type(element) is bytes for element in elements):
        return elements
    return [element if type(element) is bytes else str(element).encode() for element in elements]


def object_array(elements: list[bytes]) -> NDArray[Any]:
    """A 1-D array that has these objects as its elements."""
    array: NDArray[Any] = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
