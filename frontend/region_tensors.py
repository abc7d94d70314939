"""Tensors that all lie in regions of their client's shared memory: where those of a request are read from, and those of
a response written to.

Clients of regions send the same small message again and again, and write new values into the region. So lanes keep the
places of a request's tensors where the regions are (`Regions.kept`) and copy the bytes for each request. With every
change of the regions these are forgotten, so that none keeps a region that its client has unregistered. Front ends.
"""

from typing import NamedTuple

from shoal.datatypes import BYTES
from shoal.errors import ShoalError
from shoal.frontend.prepared import PreparedRequest, write_output
from shoal.request import InferResponse, TensorRef
from shoal.shm.client_regions import RegionSlice
from shoal.shm.cuda_regions import CudaSlice
from shoal.shm.layout import pack_span
from shoal.shm.port import Port
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.outgoing import aligned


class RegionInputs(NamedTuple):
    """The input tensors of a request, all of them in regions."""

    reads: tuple[tuple[int, RegionSlice], ...]  # where in the request's block each begins, and where its bytes are
    refs: tuple[TensorRef, ...]
    end: int  # where the block's header begins

    def read_into(self, block: memoryview) -> None:
        """Copy the tensors into a request's block. Raises InvalidArgumentError if a region has been truncated."""
        for offset, source in self.reads:
            source.read_into(block[offset : offset + source.nbytes])


class RegionOutputs(NamedTuple):
    """The output tensors of a response, all of them in regions."""

    #: Output, where in the worker's block it begins and ends, and where its client wants it.
    writes: tuple[tuple[str, int, int, RegionSlice | CudaSlice], ...]
    end: int  # where in the worker's block the last one ends

    def write(self, block: memoryview) -> None:
        """Copy the tensors from the worker's block into their regions. Raises ShoalError where one does not fit, or its
        region has been truncated."""
        for name, start, end, target in self.writes:
            write_output(name, block[start:end], target)


def inputs_in_regions(prepared: PreparedRequest) -> RegionInputs | None:
    """The places of a request's tensors; None unless all of them lie in regions. Strings have none: their lengths are
    checked each time; nor have tensors on a GPU, which stay there."""
    reads, refs, offset = [], [], 0
    for name, datatype, shape, data in prepared.inputs:
        if not isinstance(data, RegionSlice) or datatype is BYTES:
            return None
        reads.append((offset, data))
        refs.append(TensorRef(name, datatype.wire, shape, offset, data.nbytes))
        offset += aligned(data.nbytes)
    return RegionInputs(tuple(reads), tuple(refs), offset) if reads else None


def region_block(port: Port, entry: ModelEntry, inputs: RegionInputs, header: bytes) -> tuple[Block, int]:
    """A block with these tensors, as they are now, and this header, for a request to a model; and the header's span.

    The block is the caller's. Raises ShoalError where there is no room, or a region has been truncated.
    """
    block = port.allocate(inputs.end + len(header), entry.model_id)
    try:
        inputs.read_into(block.memory)
    except ShoalError:
        port.slab.free(block.ref)
        raise
    block.memory[inputs.end : inputs.end + len(header)] = header
    return block, pack_span(inputs.end, len(header))


def outputs_in_regions(prepared: PreparedRequest, response: InferResponse) -> RegionOutputs | None:
    """The places of the outputs that a request asks for; None unless all of them go into regions."""
    regions = {output.name: output.region for output in prepared.outputs}
    writes = []
    for ref in response.outputs:
        if ref.name not in regions:
            continue
        region = regions[ref.name]
        if region is None:
            return None
        writes.append((ref.name, ref.offset, ref.offset + ref.nbytes, region))
    return RegionOutputs(tuple(writes), max(end for _, _, end, _ in writes)) if writes else None
