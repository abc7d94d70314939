"""tensor.py and dlpack.py: arrays in, arrays out, in numpy and over DLPack."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack
from triton_python_backend_utils import Tensor, TritonModelException, dlpack
from triton_python_backend_utils.tensor import TensorSource

from shoal.datatypes import BF16, BYTES, FP32, Datatype


def view(*values: float) -> Tensor:
    """A read-only tensor as a server makes it."""
    array = np.frombuffer(np.array(values, np.float32).tobytes(), np.float32)
    return Tensor._made("X", FP32, array.shape, array, None, TensorSource(5, 0, array.nbytes, None))


def test_what_a_tensor_says_of_itself() -> None:
    tensor = Tensor("X", np.zeros((2, 3), np.int64))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("X", [2, 3], 9, True)
    assert tensor.__dlpack_device__() == (1, 0)
    assert repr(tensor) == "Tensor('X', INT64, [2, 3])"


def test_the_array_is_the_one_given() -> None:
    array = np.arange(4, dtype=np.float32)
    assert Tensor("X", array).as_numpy() is array


def test_what_is_not_contiguous_is_copied() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    tensor = Tensor("X", array)
    assert tensor.as_numpy().flags.c_contiguous
    assert tensor.as_numpy().tolist() == array.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...]) -> None:
    assert Tensor("X", np.zeros(shape, np.float32)).shape() == list(shape)


@pytest.mark.parametrize(
    ("array", "number"),
    [
        (np.array([b"a"], object), 13),
        (np.array(["é"]), 13),
        (np.array([b"a"]), 13),
        (np.array([1], ">i4"), 8),
        (np.array([True]), 1),
        (np.array([1], np.float16), 10),
    ],
)
def test_datatypes_of_arrays(array: Any, number: int) -> None:
    assert Tensor("X", array).triton_dtype() == number


@pytest.mark.parametrize("dtype", [np.complex64, "datetime64[s]", [("a", "i4")]])
def test_arrays_that_no_datatype_has(dtype: Any) -> None:
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\. No datatype has"):
        Tensor("X", np.zeros(1, dtype))


def test_a_tensor_needs_a_name() -> None:
    makes: list[Callable[[], Tensor]] = [lambda: Tensor("", np.zeros(1)), lambda: Tensor.from_dlpack("", np.zeros(1))]
    for make in makes:
        with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
            make()


def test_strings_are_decoded_when_they_are_read() -> None:
    wire = memoryview(b"\x01\x00\x00\x00a\x02\x00\x00\x00\xc3\xa9")
    tensor = Tensor._made("X", BYTES, (2, 1), None, wire)
    assert tensor._array is None
    assert tensor.as_numpy().tolist() == [[b"a"], ["é".encode()]]
    assert tensor.as_numpy() is tensor.as_numpy()


# -- writing into it --


def test_a_view_is_read_only_until_a_copy_is_asked_for() -> None:
    tensor = view(1, 2)
    with pytest.raises(ValueError, match="read-only"):
        tensor.as_numpy()[0] = 5
    assert tensor._source is not None
    tensor.as_numpy(writable=True)[0] = 5
    assert tensor.as_numpy().tolist() == [5, 2]
    assert tensor._source is None  # it is no longer what lies there


def test_an_array_of_its_own_is_not_copied() -> None:
    array = np.zeros(2, np.float32)
    assert Tensor("X", array).as_numpy(writable=True) is array


# -- DLPack --


def test_a_view_is_exported_as_a_private_copy() -> None:
    tensor = view(1, 2)
    np.from_dlpack(tensor)
    other = Tensor.from_dlpack("Y", tensor)
    tensor.as_numpy(writable=True)[1] = 7
    assert other.as_numpy().tolist() == [1, 7]  # one copy, made once


def test_an_array_goes_there_and_back_without_a_copy() -> None:
    array = np.arange(4, dtype=np.int16).reshape(2, 2)
    back = Tensor.from_dlpack("Y", Tensor("X", array).to_dlpack())
    assert back.as_numpy().ctypes.data == array.ctypes.data
    assert (back.name(), back.shape(), back.triton_dtype()) == ("Y", [2, 2], 7)


def code_of(capsule: Any) -> int:
    """DLDataType.code in a capsule's DLTensor: 1 unsigned, 4 bfloat."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value


def test_bf16_has_a_capsule_and_no_array() -> None:
    words = np.array([0x3F80, 0x4000], np.uint16)
    tensor = Tensor._made("X", BF16, (2,), words)
    capsule = tensor.to_dlpack()
    assert code_of(capsule) == 4
    back = Tensor.from_dlpack("Y", capsule)
    assert back._datatype is BF16
    assert back._host().tolist() == words.tolist()
    with pytest.raises(TritonModelException, match="BF16 has no numpy form"):
        back.as_numpy()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((2, 3), np.float32).T, "DLPack tensor is not contiguous"),
        (np.zeros((4, 4), np.float32)[:, :2], "DLPack tensor is not contiguous"),
        ([1, 2], "Provided tensor is not supported"),
    ],
)
def test_what_cannot_be_taken(given: Any, sentence: str) -> None:
    with pytest.raises(TritonModelException, match=sentence):
        Tensor.from_dlpack("X", given)


def test_strings_have_no_capsule() -> None:
    with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
        Tensor("X", np.array([b"a"], object)).to_dlpack()


class OnGpu:
    """A tensor on a GPU, as far as the protocol tells, at an address where this process must not look; its framework
    copies it."""

    address = 1 << 40

    def __init__(self, host: Any) -> None:
        self._host = host

    def __dlpack__(self, **_options: Any) -> Any:
        return dlpack.export_cuda(self.address, self._host.nbytes, self._host.shape, FP32, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def cpu(self) -> Any:
        return self._host


def test_what_lies_on_a_gpu_is_sent_as_a_copy() -> None:
    tensor = Tensor.from_dlpack("X", OnGpu(np.arange(3, dtype=np.float32)))
    assert (tensor.is_cpu(), tensor.shape(), tensor.__dlpack_device__()) == (False, [3], (2, 0))
    assert tensor._host().tolist() == [0, 1, 2]
    assert dlpack.device_of(tensor.to_dlpack()) == (2, 0)
    with pytest.raises(TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumPy\.$"):
        tensor.as_numpy()


def test_a_tensor_on_a_gpu_is_given_where_it_is_under_another_name_or_as_a_capsule() -> None:
    given = OnGpu(np.arange(3, dtype=np.float32))
    for tensor in (Tensor.from_dlpack("X", given), Tensor.from_dlpack("X", given.__dlpack__())):
        other = Tensor.from_dlpack("Y", tensor)
        assert (other.name(), other.is_cpu(), other.shape(), other._datatype) == ("Y", False, [3], FP32)
        assert (other._device.address, other._device.nbytes) == (OnGpu.address, 12)
        assert dlpack.device_of(other.to_dlpack()) == (2, 0)


@pytest.mark.parametrize("datatype", [FP32, BF16], ids=lambda datatype: datatype.name)
def test_with_torch(datatype: Datatype) -> None:
    given = torch.arange(6, dtype=torch.float32 if datatype is FP32 else torch.bfloat16).reshape(2, 3)
    tensor = Tensor.from_dlpack("X", given)
    assert (tensor._datatype, tensor.shape()) == (datatype, [2, 3])
    assert torch.equal(from_dlpack(tensor), given)
    assert torch.equal(from_dlpack(tensor.to_dlpack()), given)
