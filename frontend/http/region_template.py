"""JSON requests whose input tensors all lie in regions of their client's shared memory: recognised by their JSON.

The result of parsing and validating the JSON is kept (a RegionTemplate), with the places of the tensors
(frontend/region_tensors.py). So is the JSON of a response whose outputs all go into regions.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.region_tensors import RegionInputs, RegionOutputs, inputs_in_regions, outputs_in_regions
from shoal.request import InferResponse, around_id, split_header

#: The member of a JSON that places a tensor in a region.
MEMBER = b'"shared_memory_region"'
_MAX_RESPONSES = 16  # of one template: the sizes of outputs that differ from request to request


class RegionResponse(NamedTuple):
    """A response of which nothing but the tensors' bytes can change."""

    json: bytes  # without an id
    outputs: RegionOutputs


@dataclass(frozen=True, slots=True)
class RegionTemplate:
    """A request whose JSON is known."""

    prepared: PreparedRequest  # without inputs
    inputs: RegionInputs
    header: bytes  # the packed InferRequest, without its cut-out options (request_options.py)
    layout: bytes  # the first part of the header
    around_id: tuple[bytes, bytes]  # the header, in front of the id and behind it
    responses: dict[bytes, RegionResponse]  # by the worker's packed InferResponse


def make_template(prepared: PreparedRequest) -> RegionTemplate | None:
    """The template of a request that has been prepared in full, without the options that were cut out; None if it has
    none."""
    inputs = inputs_in_regions(prepared)
    if inputs is None:
        return None
    header = prepared.pack_header(inputs.refs)
    layout, _ = split_header(header)
    return RegionTemplate(replace(prepared, inputs=()), inputs, header, layout, around_id(header), {})


def keep_response(template: RegionTemplate, packed: bytes, response: InferResponse, json: bytes) -> None:
    """Keep a response that was rendered in full as `json`, without an id, if all of its outputs are in regions."""
    outputs = outputs_in_regions(template.prepared, response)
    if outputs is not None and len(template.responses) < _MAX_RESPONSES:
        template.responses[packed] = RegionResponse(json, outputs)
