"""CUDA's driver, played: beside the runtime's, the functions that tell of memory and contexts."""

from enum import IntEnum

from cuda.bindings import runtime


class CUresult(IntEnum):
    """The driver's statuses."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


def cuGetErrorString(_status: CUresult) -> tuple[CUresult, bytes]:
    """The driver's words."""
    return CUresult.CUDA_SUCCESS, b"invalid argument"


def cuDeviceGet(number: int) -> tuple[CUresult, int]:
    """A GPU."""
    return CUresult.CUDA_SUCCESS, number


def cuDevicePrimaryCtxGetState(_device: int) -> tuple[CUresult, int, int]:
    """The state of a device's primary context: always in use."""
    return CUresult.CUDA_SUCCESS, 0, 1


def cuMemGetAddressRange(address: int) -> tuple[CUresult, int, int]:
    """The allocation in which an address lies."""
    found = runtime.range_of(address)
    if found is None:
        return CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
    return CUresult.CUDA_SUCCESS, *found
