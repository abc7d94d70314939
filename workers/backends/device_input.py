"""A client's tensor on the instance's GPU, as Python models and PyTorch get it: by DLPack, where it is.

The GPU is number 0 in the process. The memory stays the client's, and mapped while a capsule lives; a model may read it
until it has answered the request, and must not write there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton_python_backend_utils import dlpack

from shoal.datatypes import Datatype
from shoal.workers.cuda_regions import GpuTensor


class DeviceInput:
    """One tensor of a client on the instance's own GPU, as DLPack's protocol has it."""

    def __init__(self, tensor: GpuTensor, shape: tuple[int, ...], datatype: Datatype) -> None:
        self._tensor = tensor
        self._shape = shape
        self._datatype = datatype

    def __dlpack__(self, **_options: Any) -> Any:
        tensor = self._tensor
        return dlpack.export_cuda(tensor.address, tensor.nbytes, self._shape, self._datatype, tensor.handle)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def host(self) -> NDArray[Any]:
        """A copy in this process's memory."""
        array: NDArray[Any] = np.ndarray(self._shape, self._datatype.dtype, self._tensor.copy())
        return array
