"""Tensors to and from other frameworks without a copy, by the DLPack protocol.

numpy has no BF16: such a tensor passes through numpy as 16-bit words, and then the type in the tensor's DLPack capsule
is set to BF16.
"""

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.datatypes import BF16, Datatype
from triton_python_backend_utils.datatypes import datatype_of
from triton_python_backend_utils.errors import TritonModelException

#: Values of DLPack's enumeration DLDeviceType.
CPU, CUDA, CUDA_HOST = 1, 2, 3
_UNSIGNED, _BFLOAT = 1, 4  # values of DLPack's enumeration DLDataTypeCode


class _Tensor(ctypes.Structure):
    """The first fields of DLPack's struct DLTensor, with which a DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


class _Given:
    """A capsule in an object with the methods `__dlpack__` and `__dlpack_device__`, since numpy accepts no bare
    capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


def export(array: NDArray[Any], datatype: Datatype) -> Any:
    """A capsule of a writable array; both share their memory."""
    capsule = array.__dlpack__()
    if datatype is BF16:
        _head(capsule).code = _BFLOAT
    return capsule


def export_cuda(address: int, nbytes: int, shape: tuple[int, ...], datatype: Datatype, keep: object) -> Any:
    """A capsule of memory on GPU 0, which this process never touches; `keep` is referenced as long as the capsule or a
    tensor made of it exists."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    memory._keep = keep  # the array, and so the capsule, refers to `memory`
    array: NDArray[Any] = np.frombuffer(memory, datatype.dtype).reshape(shape)
    capsule = export(array, datatype)
    head = _head(capsule)
    head.device_type, head.device_id = CUDA, 0
    return capsule


def take(tensor: Any) -> tuple[NDArray[Any], Datatype]:
    """An array over the memory of another framework's tensor on the CPU, or of its capsule. Raises
    TritonModelException for any other object, and for a tensor that is not contiguous."""
    if hasattr(tensor, "__dlpack__"):
        capsule = tensor.__dlpack__()
    elif type(tensor).__name__ == "PyCapsule":
        capsule = tensor
    else:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have a `__dlpack__` attribute"
        )
    head = _head(capsule)
    _refuse_strides(head)
    is_bf16 = head.code == _BFLOAT and head.bits == 16
    if is_bf16:
        head.code = _UNSIGNED
    array: NDArray[Any] = np.from_dlpack(_Given(capsule))
    return array, BF16 if is_bf16 else datatype_of(array.dtype)


class TensorOnGpu:
    """A tensor of another framework on a GPU, contiguous. It may be given as a capsule, which is then used up. Raises
    TritonModelException as `take` does."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._device = device_of(tensor)
        capsule = tensor.__dlpack__() if hasattr(tensor, "__dlpack__") else tensor
        head = _head(capsule)
        head.device_type, head.device_id = CPU, 0  # numpy refuses tensors on a GPU; nothing here reads the elements
        #: An array over the memory on the GPU, which keeps that memory; its elements must not be read or written.
        self._there, self.datatype = take(capsule)
        self.shape = self._there.shape

    @property
    def address(self) -> int:
        """The address of the first element, in memory of the GPU."""
        return self._there.ctypes.data

    @property
    def nbytes(self) -> int:
        return self._there.nbytes

    def host(self) -> NDArray[Any]:
        """A copy in this process's memory, made by the tensor's framework. Raises TritonModelException if the framework
        has no known method for that."""
        tensor = self._tensor
        return take(to_host(tensor if hasattr(tensor, "__dlpack__") else self._again()))[0]

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options) if hasattr(self._tensor, "__dlpack__") else self._again()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def _again(self) -> Any:
        """A new capsule of the memory, since each can be used only once."""
        return export_cuda(self.address, self.nbytes, self.shape, self.datatype, self._there)


def device_of(tensor: Any) -> tuple[int, int]:
    """The device of a tensor or a capsule: DLDeviceType, and the number of the device."""
    if hasattr(tensor, "__dlpack_device__"):
        kind, number = tensor.__dlpack_device__()
        return int(kind), int(number)
    if type(tensor).__name__ != "PyCapsule":
        return CPU, 0
    head = _head(tensor)
    return head.device_type, head.device_id


def to_host(tensor: Any) -> Any:
    """A copy on the CPU of a tensor on a GPU, made by the tensor's framework. Raises TritonModelException if the
    framework has no known method for that."""
    if type(tensor).__name__ == "PyCapsule" and "torch" in sys.modules:
        tensor = sys.modules["torch"].from_dlpack(tensor)
    for method in ("cpu", "get"):  # of PyTorch, of CuPy
        if hasattr(tensor, method):
            return getattr(tensor, method)()
    raise TritonModelException(
        f"a tensor of type '{type(tensor).__name__}' on a GPU cannot be brought to the CPU: pass one that has a method "
        "cpu()"
    )


def _head(capsule: Any) -> _Tensor:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _Tensor.from_address(pointer(capsule, b"dltensor"))


def _refuse_strides(head: _Tensor) -> None:
    if not head.strides:
        return
    expected = 1
    for axis in reversed(range(head.ndim)):
        if head.shape[axis] > 1 and head.strides[axis] != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= head.shape[axis]
