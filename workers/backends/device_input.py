"""A tensor of a client or of another model on the instance's GPU, passed in place to Python models and PyTorch by
DLPack.

The GPU is number 0 in the process. The memory belongs to the other process, and stays mapped while a capsule lives; a
model may read it until it has answered the request, and must not write there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton_python_backend_utils import dlpack
from triton_python_backend_utils.tensor import TensorSource

from shoal.datatypes import Datatype
from shoal.workers.cuda_regions import GpuTensor


class DeviceInput:
    """One tensor of another process on the instance's own GPU, with the methods of DLPack's protocol."""

    def __init__(
        self, tensor: GpuTensor, shape: tuple[int, ...], datatype: Datatype, source: TensorSource | None = None
    ) -> None:
        """`source` is given for a tensor that another worker has left on the GPU: it names the block that says where
        the tensor lies, and holds that block. The source is kept, like the mapping of the memory, as long as a capsule
        lives."""
        self._tensor = tensor
        self._kept = tensor.handle, source
        self.source = source
        self._shape = shape
        self._datatype = datatype

    def __dlpack__(self, **_options: Any) -> Any:
        tensor = self._tensor
        return dlpack.export_cuda(tensor.address, tensor.nbytes, self._shape, self._datatype, self._kept)

    @property
    def address(self) -> int:
        """The address of the first element, in memory of the GPU."""
        return self._tensor.address

    @property
    def nbytes(self) -> int:
        return self._tensor.nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def host(self) -> NDArray[Any]:
        """A copy in this process's memory."""
        array: NDArray[Any] = np.ndarray(self._shape, self._datatype.dtype, self._tensor.copy())
        return array
