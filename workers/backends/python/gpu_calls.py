"""Tensors of a Python model on its GPU: on their way into answers, and to and from the models that it calls.

What a called model takes on the same GPU stays there: a tensor that another worker has left there is lent by its block,
as one in host memory is, any other is copied into this worker's own pool, where it stays until the last reply. Answers
stay on the GPU if the call prefers that (`PreferredMemory`). All else goes through host memory. Runs in a worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from triton_python_backend_utils import Tensor
from triton_python_backend_utils.model_request import TRITONSERVER_MEMORY_GPU, ModelRequest
from triton_python_backend_utils.tensor import TensorSource

from shoal.datatypes import BYTES, Datatype
from shoal.model_config.gpu_tensors import gpu_of_inputs
from shoal.request import (
    PLACED,
    PLACED_NBYTES,
    InferRequest,
    InferResponse,
    LentTensorRef,
    Stay,
    TensorRef,
    pack_request,
    unpack_placed,
    unpack_placed_response,
)
from shoal.shm.cuda_regions import place_in_pool
from shoal.shm.layout import NO_BLOCK, pack_span, ref_owner
from shoal.star.models import ModelEntry
from shoal.star.outgoing import Input, OutgoingRequest, aligned
from shoal.workers.backends.device_input import DeviceInput
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.gpu_answers import DeviceOutput
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.tensors import Array


def outgoing(tensor: Tensor) -> "Array | DeviceOutput":
    """An output of the model where it is, for GpuAnswers."""
    there = tensor._device
    if there is None or tensor._private is not None:
        return tensor._host()
    return DeviceOutput(
        there.address, tensor._shape, tensor._datatype.dtype, there.nbytes, tensor._host, (there, tensor)
    )


@dataclass(frozen=True, slots=True)
class GpuCall(OutgoingRequest):
    """A call some of whose tensors are on the GPU, or whose outputs may stay there. `places` has, by input, the place
    of one in the caller's pool, or b"" for one whose place another block has."""

    places: Mapping[str, bytes] = field(default_factory=dict)
    stays: tuple[Stay, ...] = ()
    #: The response's block has places, so no copy of it takes its place.
    holds_response: ClassVar[bool] = True

    @classmethod
    def of(cls, call: OutgoingRequest, places: Mapping[str, bytes], stays: tuple[Stay, ...]) -> "GpuCall":
        """A checked call, with what concerns the GPU."""
        return cls(call.entry, call.ask, call.shapes, call.rows, call.shape_key, places, stays)

    @property
    def nbytes(self) -> int:
        """The bytes that `write` needs, or more."""
        stays = sum([16 + 4 * len(each.name) for each in self.stays])
        # A tensor that is placed has a range as its data; it would count with all its bytes.
        copied = sum([aligned(len(each.data)) for each in self.ask.inputs if self.places.get(each.name)])
        whole: int = OutgoingRequest.nbytes.__get__(self)
        return whole - copied + len(self.places) * aligned(PLACED_NBYTES) + stays + 16

    def write(self, memory: memoryview) -> int:
        """Write tensors, places and header into a block of at least `nbytes` bytes. Returns the header's span."""
        ask, offset = self.ask, 0
        refs: list[TensorRef | LentTensorRef] = []
        for (name, datatype, _, data, ref, elsewhere), shape in zip(ask.inputs, self.shapes, strict=True):
            place = self.places.get(name)
            wire, nbytes = datatype.wire if place is None else datatype.wire | PLACED, len(data)
            if ref != NO_BLOCK:
                refs.append(LentTensorRef(name, wire, shape, elsewhere, nbytes, ref))
                continue
            written = data if place is None else place
            memory[offset : offset + len(written)] = written
            refs.append(TensorRef(name, wire, shape, offset, nbytes))
            offset += aligned(len(written))
        sequence = ask.correlation_id, ask.flags
        inputs = cast("tuple[TensorRef, ...]", tuple(refs))
        header = pack_request(InferRequest(ask.id, inputs, ask.outputs, ask.parameters, sequence, self.stays))
        memory[offset : offset + len(header)] = header
        return pack_span(offset, len(header))

    def unpack(self, header: bytes, block_nbytes: int) -> InferResponse:
        """The response, with tensors on the GPU. Raises InternalError if it is malformed."""
        return unpack_placed_response(header, block_nbytes)


class GpuCalls:
    """The GPU of one model, for its calls of other models."""

    def __init__(self, pool: GpuPool, regions: Callable[[], CudaRegions]) -> None:
        self._pool = pool
        self._regions = regions

    def forget(self, owner: int) -> None:
        """Close handles that blocks of a segment have named: its owner is gone."""
        self._regions().forget_pool(owner)

    def takes(self, entry: ModelEntry) -> bool:
        """Whether the called model takes inputs where they are on this GPU."""
        return gpu_of_inputs(entry.config) == self._pool.gpu

    def stays(self, entry: ModelEntry, request: ModelRequest) -> tuple[Stay, ...]:
        """The outputs of a call that may stay on the GPU."""
        prefers = request._preferred_memory.preferred_memory_type == TRITONSERVER_MEMORY_GPU
        if not prefers or entry.is_cached or entry.is_decoupled:
            return ()
        outputs = entry.signature.outputs
        wanted = request._requested_output_names
        return tuple(
            [Stay(name, self._pool.gpu) for name in wanted if name in outputs and outputs[name].datatype is not BYTES]
        )

    def place(self, tensor: Tensor, *, can_lend: bool) -> tuple[Input, bytes, object] | None:
        """A tensor on the GPU as an input of a call: the input, its place, b"" if another block has it, and what must
        be kept until the last reply. `can_lend` says whether tensors of the model's requests can be lent. None if it
        has to go through host memory."""
        there = tensor._device
        if there is None or tensor._private is not None or not there.nbytes:
            return None
        named = tensor._name, tensor._datatype, tuple(tensor._shape)
        data = cast("memoryview", range(there.nbytes))  # only its size counts
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
        holds the block. Raises ShoalError if it is out of reach."""
        placed = unpack_placed(block, source.offset)
        place = place_in_pool(placed, ref_owner(source.ref))
        given = self._regions().keep(place, placed.offset, source.nbytes)
        return Tensor._on_gpu(name, datatype, shape, DeviceInput(given, shape, datatype, source))
