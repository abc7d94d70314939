"""The registered regions of clients' shared memory, the same in every front end.

The supervisor opens a region of system memory once, and sends its descriptor to every front end before it confirms to
the client that the region is registered. A region on a GPU is known by its handle, which workers open
(shm/cuda_regions.py). Likewise every front end has removed a region before the client gets the answer that it is
unregistered. A request keeps the regions that it names until it has been answered, even if they are unregistered
meanwhile.

Clients of regions send the same small message again and again, and write new values into the region. So lanes keep the
places of a request's tensors where the regions are (`Regions.kept`) and copy the bytes for each request. With every
change of the regions the kept places are forgotten, since they would keep a region that its client has unregistered.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

from shoal.datatypes import BYTES, Datatype
from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError, UnsupportedError
from shoal.frontend.prepared import PreparedRequest, write_output
from shoal.memo import Memo
from shoal.messages.to_client import CudaRegionRegistered, RegionRegistered
from shoal.request import InferResponse, TensorRef
from shoal.shm.client_regions import ClientRegion, RegionSlice
from shoal.shm.cuda_regions import CudaRegion, CudaSlice
from shoal.shm.layout import pack_span
from shoal.shm.port import Port
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.outgoing import aligned

_MAX_KEPT = 512


class Regions:
    """The regions by name. Only the thread that handles the supervisor's messages changes the table; any thread may
    read it."""

    def __init__(self, *, are_allowed: bool = False, has_gpus: bool = False, max_string_bytes: int = 0) -> None:
        self.are_allowed = are_allowed
        self.has_gpus = has_gpus  # whether regions may lie on a GPU
        self._max_string_bytes = max_string_bytes
        # Changed by add and remove: the regions by name.
        self._regions: dict[str, ClientRegion | CudaRegion] = {}
        #: Templates of requests that name regions, for later ones like them; emptied with each change of regions.
        self.kept = Memo[Hashable, Any]("region_requests", _MAX_KEPT)

    def add(self, message: RegionRegistered) -> None:
        """Add a registered region; takes over the descriptor."""
        self.kept.entries.clear()
        self._regions[message.name] = ClientRegion(*message.values)

    def add_cuda(self, message: CudaRegionRegistered) -> None:
        self.kept.entries.clear()
        self._regions[message.name] = CudaRegion(*message.values)

    def remove(self, name: str, kind: str = "system") -> None:
        """Remove an unregistered region of a kind; all regions of the kind if `name` is ""."""
        self.kept.entries.clear()
        for each in [name] if name else list(self._regions):
            region = self._regions.get(each)
            if region is not None and kind_of(region) == kind:
                del self._regions[each]

    def require_allowed(self) -> None:
        """Raise UnsupportedError if the server does not accept clients' shared memory."""
        if not self.are_allowed:
            raise UnsupportedError(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )

    def slice(self, name: str, offset: int, nbytes: int) -> RegionSlice | CudaSlice:
        """A part of a region, for one tensor. Raises ShoalErrors with Triton's sentences."""
        self.require_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        return region.slice(offset, nbytes)

    def tensor(
        self, datatype: Datatype | None, name: str, offset: int, nbytes: int
    ) -> memoryview | RegionSlice | CudaSlice:
        """The data of an input that lies in a region. Strings are copied, since the client must not change their
        lengths after the check; strings on a GPU are copied and checked by the worker. Raises ShoalError."""
        found = self.slice(name, offset, nbytes)
        if datatype is not BYTES or isinstance(found, CudaSlice):
            return found
        if nbytes > self._max_string_bytes:  # an object in /dev/shm may be long without taking memory
            raise InvalidArgumentError(
                f"{nbytes} bytes of strings in shared memory region '{name}' exceed the maximum allowed input size of "
                f"{self._max_string_bytes} bytes. Use --http-max-input-size to increase the limit."
            )
        return memoryview(bytes(found))

    def status(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The regions of a kind ("system" or "cuda"), or the one of this `name` alone unless `name` is "".

        Raises NotFoundError if there is no region of this name and kind.
        """
        if not name:
            found = [(each, region) for each, region in sorted(self._regions.items()) if kind_of(region) == kind]
        elif (region := self._regions.get(name)) is None:
            raise NotFoundError(f"Unable to find {kind} shared memory region: '{name}'")
        elif kind_of(region) != kind:
            other = kind_of(region)
            raise NotFoundError(
                f"The region named '{name}' is registered as {_WORDS[other]} shared memory, not {_WORDS[kind]} "
                "shared memory"
            )
        else:
            found = [(name, region)]
        return [_row(each, region) for each, region in found]


_WORDS = {"system": "system", "cuda": "CUDA"}


def kind_of(region: ClientRegion | CudaRegion) -> str:
    """ "cuda" for a region on a GPU, else "system"."""
    return "cuda" if isinstance(region, CudaRegion) else "system"


def _row(name: str, region: ClientRegion | CudaRegion) -> dict[str, Any]:
    if isinstance(region, CudaRegion):
        return {"name": name, "device_id": region.device_id, "byte_size": region.byte_size}
    return {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


#: The regions of a server that does not accept clients' shared memory.
NO_REGIONS = Regions()


class RegionInputs(NamedTuple):
    """The input tensors of a request, all of them in regions."""

    reads: tuple[tuple[int, RegionSlice], ...]  # each tensor's offset in the request's block, and its region's part
    refs: tuple[TensorRef, ...]
    end: int  # where the block's header begins

    def read_into(self, block: memoryview) -> None:
        """Copy the tensors into a request's block. Raises InvalidArgumentError if a region has been truncated."""
        for offset, source in self.reads:
            source.read_into(block[offset : offset + source.nbytes])


class RegionOutputs(NamedTuple):
    """The output tensors of a response, all of them in regions."""

    #: An output's name, where in the worker's block it begins and ends, and where its client wants it.
    writes: tuple[tuple[str, int, int, RegionSlice | CudaSlice], ...]
    end: int  # where in the worker's block the last output ends

    def write(self, block: memoryview) -> None:
        """Copy the tensors from the worker's block into their regions. Raises ShoalError if a tensor does not fit, or
        its region has been truncated."""
        for name, start, end, target in self.writes:
            write_output(name, block[start:end], target)


def inputs_in_regions(prepared: PreparedRequest) -> RegionInputs | None:
    """The places of a request's tensors; None unless all of them can be copied from regions unread. Strings cannot,
    since their lengths are checked each time, nor can tensors on a GPU, which stay there."""
    reads, refs, offset = [], [], 0
    for name, datatype, shape, data in prepared.inputs:
        if not isinstance(data, RegionSlice) or datatype is BYTES:
            return None
        reads.append((offset, data))
        refs.append(TensorRef(name, datatype.wire, shape, offset, data.nbytes))
        offset += aligned(data.nbytes)
    return RegionInputs(tuple(reads), tuple(refs), offset) if reads else None


def region_block(port: Port, entry: ModelEntry, inputs: RegionInputs, header: bytes) -> tuple[Block, int]:
    """A block for a request to a model, with copies of these tensors and this header; and the header's span.

    The block belongs to the calling code. Raises ShoalError if there is no room, or a region has been truncated.
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
