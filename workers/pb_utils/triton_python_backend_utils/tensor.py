"""Tensor: a named array, made by a model, or a view of what a client or another model sent."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BF16, BYTES, Datatype, decode_bytes_tensor
from triton_python_backend_utils import dlpack
from triton_python_backend_utils.arguments import text
from triton_python_backend_utils.datatypes import datatype_of, object_array
from triton_python_backend_utils.errors import TritonModelException


class TensorSource(NamedTuple):
    """Where a tensor lies in the server's memory, so that it can be passed on without a copy."""

    ref: int  # of a block
    offset: int  # in it, in bytes
    nbytes: int
    keep: object  # while it is held, the block is


def _checked_name(name: str | bytes) -> str:
    """A tensor's name as text. Raises TypeError where it is none, TritonModelException where it is empty."""
    if not (checked := text("a tensor's name", name)):
        raise TritonModelException("Tensor name cannot be an empty string.")
    return checked


def _array_of(given: Any) -> NDArray[Any]:
    """What numpy makes of something that is not an array. Raises TypeError for a single object, as None is."""
    array = np.asarray(given)
    if array.dtype.kind == "O" and not array.ndim:
        raise TypeError(f"a tensor is made of an array, found type {type(given)}")
    return array


class Tensor:
    """A named tensor. One that the server made is a read-only view; strings are decoded on first use."""

    # Changed by as_numpy and to_dlpack: the array, once it is asked for, and a copy that may be written to.
    _array: NDArray[Any] | None = None
    _private: NDArray[Any] | None = None
    # What the array is made of where it is none yet: the wire form of strings, or a tensor on a GPU.
    _data: memoryview | None = None
    _device: Any = None
    #: The tensor's place in the server's memory, if it lies there.
    _source: TensorSource | None = None

    def __init__(self, name: str | bytes, numpy_array: NDArray[Any]) -> None:
        if type(numpy_array) is not np.ndarray:
            numpy_array = _array_of(numpy_array)
        if type(name) is not str or not name:
            name = _checked_name(name)
        if not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self._name = name
        self._datatype = datatype_of(numpy_array.dtype)
        self._shape = numpy_array.shape
        self._array = numpy_array

    @classmethod
    def _made(
        cls,
        name: str,
        datatype: Datatype,
        shape: tuple[int, ...],
        array: NDArray[Any] | None,
        data: memoryview | None = None,
        source: TensorSource | None = None,
    ) -> "Tensor":
        """A tensor of the server's: `array`, of the datatype's numpy form, or, for strings, the wire form as `data`."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = array
        if data is not None:
            tensor._data = data
        if source is not None:
            tensor._source = source
        return tensor

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The tensor's dimensions."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of its datatype."""
        return self._datatype.wire

    def is_cpu(self) -> bool:
        """Whether the tensor lies in the memory of the CPU."""
        return self._device is None

    def as_numpy(self, *, writable: bool = False) -> NDArray[Any]:
        """The array; read-only where it is a view of what was sent. `writable` (ours) gives a copy in that case."""
        if self._device is not None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype is BF16:
            raise TritonModelException("BF16 has no numpy form: use DLPack, as in torch.from_dlpack(tensor).")
        array = self._private
        if array is None:
            array = self._array if self._array is not None else self._decoded()
            if writable and not array.flags.writeable:
                array = self._own()
        return array

    def to_dlpack(self) -> Any:
        """A DLPack capsule. A view is copied, once: the protocol knows no read-only tensors."""
        if self._device is not None:
            return self._device.__dlpack__()
        if self._datatype is BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._own(), self._datatype)

    def __dlpack__(self, **_options: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0) if self._device is None else dlpack.device_of(self._device)

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: Any) -> "Tensor":
        """A tensor of another framework, by its `__dlpack__` or as a capsule; without a copy, but from a GPU."""
        name = _checked_name(name)
        if dlpack.device_of(tensor)[0] == dlpack.CUDA:
            host, datatype = dlpack.take(dlpack.to_host(tensor))
            made = Tensor._made(name, datatype, host.shape, host)
            made._device = tensor
            return made
        array, datatype = dlpack.take(tensor)
        return Tensor._made(name, datatype, array.shape, array)

    def _host(self) -> NDArray[Any]:
        """The array as it is sent: BF16 as its words, and what lies on a GPU as the copy of it."""
        array = self._private if self._private is not None else self._array
        return self._decoded() if array is None else array

    def _decoded(self) -> NDArray[Any]:
        assert self._data is not None
        array = object_array(decode_bytes_tensor(self._data)).reshape(self._shape)
        self._array = array
        return array

    def _own(self) -> NDArray[Any]:
        """An array that may be written to; from now on this is the tensor."""
        if self._private is None:
            array = self._host()
            self._private = array if array.flags.writeable else array.copy()
            self._source = None
        return self._private

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype.name}, {list(self._shape)})"
