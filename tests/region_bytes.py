"""The bytes of an input or a region's part, wherever a front end can read them."""

from shoal.shm.client_regions import RegionSlice
from shoal.shm.cuda_regions import CudaSlice


def bytes_of(data: memoryview | RegionSlice | CudaSlice) -> bytes:
    """A copy of the data, which must not be on a GPU."""
    assert not isinstance(data, CudaSlice)
    return bytes(data)
