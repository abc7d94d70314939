"""Tensors of a Python model on its GPU: on their way into answers, and to and from the models that it calls.

Inputs of a call stay on the GPU if the called model takes inputs there. A tensor in another worker's pool is lent by
the block that names it, as a tensor in host memory is lent by its block; any other is copied into this worker's own
pool and stays there until the last reply. Outputs of a call stay on the GPU if the call prefers that
(`PreferredMemory`). All other tensors go through host memory. Runs in a worker.
"""

from collections.abc import Callable
from typing import cast

from triton_python_backend_utils import Tensor
from triton_python_backend_utils.model_request import TRITONSERVER_MEMORY_GPU, ModelRequest
from triton_python_backend_utils.tensor import TensorSource

from shoal.datatypes import BYTES, Datatype
from shoal.model_config.gpu_tensors import gpu_of_inputs
from shoal.request import Stay, unpack_placed
from shoal.shm.cuda_regions import place_in_pool
from shoal.shm.layout import ref_owner
from shoal.star.models import ModelEntry
from shoal.star.outgoing import Input
from shoal.workers.backends.device_input import DeviceInput
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.gpu_answers import DeviceOutput
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.tensors import Array


def outgoing(tensor: Tensor) -> "Array | DeviceOutput":
    """A tensor in the form in which GpuAnswers takes it: a DeviceOutput if it lies on the GPU, otherwise an array."""
    there = tensor._device
    if there is None or tensor._private is not None:
        return tensor._host()
    return DeviceOutput(
        there.address, tensor._shape, tensor._datatype.dtype, there.nbytes, tensor._host, (there, tensor)
    )


class GpuCalls:
    """The GPU of one model, for its calls of other models."""

    def __init__(self, pool: GpuPool, regions: Callable[[], CudaRegions]) -> None:
        self._pool = pool
        self._regions = regions

    def forget(self, owner: int) -> None:
        """Close the handles of a dead worker's pool; `owner` is the owner id of the segment whose blocks named the
        pool."""
        self._regions().forget_pool(owner)

    def takes(self, entry: ModelEntry) -> bool:
        """Whether a model takes inputs that lie on this GPU, without a copy in host memory."""
        return gpu_of_inputs(entry.config) == self._pool.gpu

    def stays(self, entry: ModelEntry, request: ModelRequest) -> tuple[Stay, ...]:
        """The requested outputs of a call that may stay on this GPU: none unless the call prefers GPU memory."""
        prefers = request._preferred_memory.preferred_memory_type == TRITONSERVER_MEMORY_GPU
        if not prefers or entry.is_cached or entry.is_decoupled:
            return ()
        outputs = entry.signature.outputs
        wanted = request._requested_output_names
        return tuple(
            [Stay(name, self._pool.gpu) for name in wanted if name in outputs and outputs[name].datatype is not BYTES]
        )

    def place(self, tensor: Tensor, *, can_lend: bool) -> tuple[Input, bytes, object] | None:
        """A tensor on the GPU as an input of a call: the input, its place (b"" if the block that lends it has the
        place), and an object to keep until the last reply; None if the tensor has to go through host memory. `can_lend`
        says whether tensors of the model's requests can be lent."""
        there = tensor._device
        if there is None or tensor._private is not None or not there.nbytes:
            return None
        named = tensor._name, tensor._datatype, tuple(tensor._shape)
        data = cast("memoryview", range(there.nbytes))  # stands for the data: only the number of bytes is used
        source = there.source if isinstance(there, DeviceInput) else None
        if source is not None and (source.keep is not None or can_lend):
            return Input(*named, data, source.ref, source.offset), b"", source
        part = self._pool.keep(there.address, there.nbytes)
        if part is None:
            return None
        return Input(*named, data), self._pool.place(part), part

    def open(
        self, name: str, datatype: Datatype, shape: tuple[int, ...], source: TensorSource, block: memoryview
    ) -> Tensor:
        """A tensor of a response that has stayed on the GPU; `source` says where in `block` its place is, and what
        holds the block. Raises ShoalError if this process cannot reach that memory."""
        placed = unpack_placed(block, source.offset)
        place = place_in_pool(placed, ref_owner(source.ref))
        given = self._regions().keep(place, placed.offset, source.nbytes)
        return Tensor._on_gpu(name, datatype, shape, DeviceInput(given, shape, datatype, source))
