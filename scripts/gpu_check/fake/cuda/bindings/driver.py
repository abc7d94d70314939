"""A stand-in for cuda.bindings.driver, on machines without a GPU: its functions about memory and contexts."""

from enum import IntEnum

from cuda.bindings import runtime


class CUresult(IntEnum):
    """The statuses that the stand-in returns."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


def cuGetErrorString(_status: CUresult) -> tuple[CUresult, bytes]:
    """The text of an error's status."""
    return CUresult.CUDA_SUCCESS, b"invalid argument"


def cuDeviceGet(number: int) -> tuple[CUresult, int]:
    """The device handle of the GPU with this number, which is the number."""
    return CUresult.CUDA_SUCCESS, number


def cuDevicePrimaryCtxGetState(_device: int) -> tuple[CUresult, int, int]:
    """The flags of a device's primary context, and whether it is in use: 0, and always 1."""
    return CUresult.CUDA_SUCCESS, 0, 1


def cuMemGetAddressRange(address: int) -> tuple[CUresult, int, int]:
    """Start and size in bytes of the allocation in which an address lies."""
    found = runtime.range_of(address)
    if found is None:
        return CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
    return CUresult.CUDA_SUCCESS, *found
