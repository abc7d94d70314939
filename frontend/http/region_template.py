"""JSON requests whose input tensors all lie in regions of their client's shared memory: recognised by their JSON.

Clients of regions send the same small JSON again and again, and write new values into the region. The result of parsing
and validating the JSON is kept (a RegionTemplate), with the places of the tensors, whose bytes are read for each
request. So is the JSON of a response whose outputs all go into regions. Templates are kept where the regions are
(`Regions.kept`) and forgotten with every change of these, so that none keeps a region that its client has unregistered.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.datatypes import BYTES
from shoal.frontend.prepared import PreparedRequest, write_output
from shoal.request import InferResponse, TensorRef, around_id, split_header
from shoal.shm.client_regions import RegionSlice
from shoal.star.outgoing import aligned

#: The member of a JSON that places a tensor in a region.
MEMBER = b'"shared_memory_region"'
_MAX_RESPONSES = 16  # of one template: the sizes of outputs that differ from request to request


@dataclass(frozen=True, slots=True)
class RegionTemplate:
    """A request whose JSON is known."""

    prepared: PreparedRequest  # without inputs
    reads: tuple[tuple[int, RegionSlice], ...]  # where in the block each input begins, and where its bytes are
    header_offset: int
    header: bytes  # the packed InferRequest, without what was cut out (request_options.py)
    layout: bytes  # the first part of the header
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    responses: dict[bytes, "RegionResponse"]  # by the worker's packed InferResponse

    def read_into(self, block: memoryview) -> None:
        """Copy the tensors into a request's block. Raises InvalidArgumentError if a region has been truncated."""
        for offset, source in self.reads:
            source.read_into(block[offset : offset + source.nbytes])


class RegionResponse(NamedTuple):
    """A response of which nothing but the tensors' bytes can change."""

    json: bytes  # without an id
    writes: tuple[tuple[str, int, int, RegionSlice], ...]  # output, where in the worker's block it begins and ends
    end: int  # where in the worker's block the last output ends

    def write(self, block: memoryview) -> None:
        """Copy the outputs from the worker's block into their regions. Raises ShoalError where one does not fit, or
        has been truncated."""
        for name, start, end, target in self.writes:
            write_output(name, block[start:end], target)


def make_template(prepared: PreparedRequest) -> RegionTemplate | None:
    """The template of a request that has been prepared in full, without the options that were cut out; None if it has
    none. Strings have none: their lengths are checked each time."""
    reads, refs, offset = [], [], 0
    for name, datatype, shape, data in prepared.inputs:
        if not isinstance(data, RegionSlice) or datatype is BYTES:
            return None
        reads.append((offset, data))
        refs.append(TensorRef(name, datatype.wire, shape, offset, data.nbytes))
        offset += aligned(data.nbytes)
    header = prepared.pack_header(refs)
    layout, _ = split_header(header)
    kept = replace(prepared, inputs=())
    return RegionTemplate(kept, tuple(reads), offset, header, layout, around_id(header), {})


def keep_response(template: RegionTemplate, packed: bytes, response: InferResponse, json: bytes) -> None:
    """Keep a response that was rendered in full as `json`, without an id, if all of its outputs are in regions."""
    regions = {output.name: output.region for output in template.prepared.outputs}
    sent = [ref for ref in response.outputs if ref.name in regions]
    writes = []
    for ref in sent:
        region = regions[ref.name]
        if region is None:
            return
        writes.append((ref.name, ref.offset, ref.offset + ref.nbytes, region))
    if writes and len(template.responses) < _MAX_RESPONSES:
        template.responses[packed] = RegionResponse(json, tuple(writes), max(end for _, _, end, _ in writes))
