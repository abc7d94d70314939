"""faults.py: the words of each framework, and what is none of its business."""

import pytest

from shoal.errors import InternalError, InvalidArgumentError
from shoal.workers.faults import DeviceError, Fault, fault_of


class OutOfMemoryError(RuntimeError):
    """Named as torch's; its words say nothing."""


class AcceleratorError(RuntimeError):
    """As torch raises it since 2.8."""


class TritonModelException(Exception):
    """As a model raises what it has caught."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("no"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        InternalError("onnx runtime error 1: CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr=cudaMalloc"),
        InternalError("onnx runtime error 6: Failed to allocate memory for requested buffer of size 4294967296"),
        InternalError("onnx runtime error 6: Available memory of 1024 is smaller than requested bytes of 4096"),
        InternalError(
            "TensorRT: IExecutionContext::enqueueV3: Error Code 2: OutOfMemory (Requested size was 8 bytes.)"
        ),
        RuntimeError("CUDA error 2: out of memory (cudaErrorMemoryAllocation in cudaMalloc)"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2 bytes"),
        MemoryError("CUDA out of memory."),
        TritonModelException("CUDA out of memory. Tried to allocate"),
        DeviceError("in other words", Fault.OUT_OF_MEMORY),
    ],
)
def test_too_little_memory(error: Exception) -> None:
    assert fault_of(error) is Fault.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "error",
    [
        AcceleratorError("CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        InternalError("onnx runtime error 1: … CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; …"),
        InternalError("TensorRT: [checkMacros.cpp::181] Error Code 1: Cuda Runtime (misaligned address)"),
        RuntimeError("CUDA error 719: unspecified launch failure (cudaErrorLaunchFailure in cudaStreamSynchronize)"),
        RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_MAPPING_ERROR"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        AcceleratorError("CUDA error: unknown error\nSearch for `cudaErrorUnknown' in https://docs.nvidia.com/"),
        RuntimeError("CUDA driver error: unknown error"),
        RuntimeError("CUDA error: the MPS client has been terminated by the server"),
        RuntimeError("CUDA error 805: MPS client failed to connect to the MPS control daemon or the MPS server (…)"),
        InternalError("onnx runtime error 1: CUDA failure 806: … ; expr=… cudaErrorMpsRpcFailure"),
        InternalError("onnx runtime error 1: CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; …"),
        AcceleratorError("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
        DeviceError("in other words", Fault.DEVICE_LOST),
    ],
)  # fmt: skip
def test_a_lost_device(error: Exception) -> None:
    assert fault_of(error) is Fault.DEVICE_LOST


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape '[2]' is invalid for input of size 3"),
        ValueError("no such word: CUDA error: device-side assert triggered"),
        InvalidArgumentError("no such word: CUDA out of memory"),
        RuntimeError("an illegal memory access was encountered, said the client"),
        RuntimeError("CUDA error: invalid device ordinal"),  # not sticky
        RuntimeError("unknown error"),
        RuntimeError("no CUDA-capable device is detected, a client wrote"),
        MemoryError(),
        KeyError("CUDA out of memory"),
    ],
)
def test_what_is_no_fault_of_the_device(error: Exception) -> None:
    assert fault_of(error) is None


def test_what_led_to_an_error_counts() -> None:
    def fail() -> None:
        try:
            raise RuntimeError("CUDA error: misaligned address")
        except RuntimeError as error:
            raise KeyError("logits") from error

    def clean_up() -> None:
        try:
            raise RuntimeError("CUDA out of memory.")
        finally:
            raise ValueError("nothing to clean up")

    with pytest.raises(KeyError) as lost:
        fail()
    with pytest.raises(ValueError, match="clean up") as exhausted:
        clean_up()
    assert (fault_of(lost.value), fault_of(exhausted.value)) == (Fault.DEVICE_LOST, Fault.OUT_OF_MEMORY)


def test_what_an_error_does_not_come_from_does_not_count() -> None:
    def replace() -> None:
        try:
            raise RuntimeError("CUDA out of memory.")
        except RuntimeError:
            raise ValueError("too many words") from None

    with pytest.raises(ValueError, match="words") as raised:
        replace()
    assert fault_of(raised.value) is None


def test_an_error_that_led_to_itself() -> None:
    error, other = KeyError("logits"), RuntimeError("CUDA out of memory.")
    error.__cause__ = error
    assert fault_of(error) is None
    other.__cause__ = error
    error.__cause__ = other
    assert fault_of(error) is Fault.OUT_OF_MEMORY


def test_an_error_that_cannot_say_what_it_is() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert fault_of(Mute()) is None
