"""Tensor: a named array that a model has made, or a view of a tensor that a client or another model has sent."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BF16, BYTES, Datatype, decode_bytes_tensor
from triton_python_backend_utils import dlpack
from triton_python_backend_utils.arguments import text
from triton_python_backend_utils.datatypes import datatype_of, object_array
from triton_python_backend_utils.errors import TritonModelException


class TensorSource(NamedTuple):
    """The place of a tensor in the server's memory, by which it can be passed on without a copy."""

    ref: int  # reference to the block
    offset: int  # of the tensor in the block, in bytes
    nbytes: int
    keep: object  # as long as this object exists, the block is not freed


def _checked_name(name: str | bytes) -> str:
    """A tensor's name as text. Raises TypeError if it is no text, TritonModelException if it is empty."""
    if not (checked := text("a tensor's name", name)):
        raise TritonModelException("Tensor name cannot be an empty string.")
    return checked


def _array_of(given: Any) -> NDArray[Any]:
    """An object that is not an array, converted by numpy. Raises TypeError for a single object, such as None."""
    array = np.asarray(given)
    if array.dtype.kind == "O" and not array.ndim:
        raise TypeError(f"a tensor is made of an array, found type {type(given)}")
    return array


class Tensor:
    """A named tensor. A tensor that the server made is a read-only view; strings are decoded on first use."""

    # Changed by as_numpy and to_dlpack: the array, once it was used; a writable copy, if one was made.
    _array: NDArray[Any] | None = None
    _private: NDArray[Any] | None = None
    # What the array will be made from, if it is not made yet: strings in wire form, or a tensor on a GPU.
    _data: memoryview | None = None
    _device: Any = None
    #: The tensor's place in the server's memory; None if it lies elsewhere.
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
        """A tensor made by the server: `array`, in the datatype's numpy form or, for strings, wire form `data`."""
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

    @classmethod
    def _on_gpu(cls, name: str, datatype: Datatype, shape: tuple[int, ...], device: Any) -> "Tensor":
        """A tensor on the model's GPU: `device` has `__dlpack__`, `__dlpack_device__`, `address` and `nbytes`, and
        `host`, which makes a copy in this process's memory."""
        tensor = cls._made(name, datatype, shape, None)
        tensor._device = device
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the tensor's datatype."""
        return self._datatype.wire

    def is_cpu(self) -> bool:
        """Whether the tensor lies in the memory of the CPU."""
        return self._device is None

    def as_numpy(self, *, writable: bool = False) -> NDArray[Any]:
        """The tensor as an array; read-only if it is a view of a client's or another model's memory. `writable`
        (ours) gives a copy in that case. Raises TritonModelException for a tensor on a GPU and for BF16."""
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
        """A DLPack capsule of the tensor. A view is copied first, only once: DLPack has no read-only tensors. Raises
        TritonModelException for strings."""
        if self._device is not None:
            return self._device.__dlpack__()
        if self._datatype is BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._own(), self._datatype)

    def __dlpack__(self, **_options: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0) if self._device is None else self._device.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: Any) -> "Tensor":
        """A tensor of another framework, by its `__dlpack__` or as a capsule; not copied. A tensor on a GPU is read
        when the response that has it is sent. Raises TritonModelException for an object that is no such tensor."""
        name = _checked_name(name)
        if isinstance(tensor, Tensor) and tensor._device is not None:
            return Tensor._on_gpu(name, tensor._datatype, tensor._shape, tensor._device)
        if dlpack.device_of(tensor)[0] == dlpack.CUDA:
            there = dlpack.TensorOnGpu(tensor)
            return Tensor._on_gpu(name, there.datatype, there.shape, there)
        array, datatype = dlpack.take(tensor)
        return Tensor._made(name, datatype, array.shape, array)

    def _host(self) -> NDArray[Any]:
        """The array in the form in which it is sent: BF16 as 16-bit words, a tensor on a GPU as a copy in host
        memory."""
        array = self._private if self._private is not None else self._array
        if array is None and self._device is not None:
            array = self._array = self._device.host()
        return self._decoded() if array is None else array

    #: A function that makes an output's array for the server. The backend of an instance whose outputs may stay on its
    #: GPU sets another function than `_host`.
    _outgoing: ClassVar[Callable[[Any], Any]] = _host

    def _decoded(self) -> NDArray[Any]:
        assert self._data is not None
        array = object_array(decode_bytes_tensor(self._data)).reshape(self._shape)
        self._array = array
        return array

    def _own(self) -> NDArray[Any]:
        """A writable array of the elements, which this tensor uses from now on."""
        if self._private is None:
            array = self._host()
            self._private = array if array.flags.writeable else array.copy()
            self._source = None
        return self._private

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype.name}, {list(self._shape)})"
