"""Messages whose input tensors all lie in regions of their client's shared memory: recognised by their bytes, but for
the id.

The result of parsing and validating such a message is kept (a RegionTemplate), with the places of the tensors
(frontend/region_tensors.py). So are the bytes of a response whose outputs all go into regions.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.frontend.grpc import wire
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.region_tensors import RegionInputs, RegionOutputs, inputs_in_regions, outputs_in_regions
from shoal.request import InferResponse, around_id

_MAX_RESPONSES = 16  # of one template: the sizes of outputs that differ from request to request


class RegionResponse(NamedTuple):
    """A response of which nothing but its id and the tensors' bytes can change."""

    around: wire.Envelope
    outputs: RegionOutputs


@dataclass(frozen=True, slots=True)
class RegionTemplate:
    """A request of which everything is known but its id and the tensors' bytes."""

    prepared: PreparedRequest  # without an id and inputs
    pattern: wire.WirePattern | None
    num_changes: int  # number of changes of the models until then: after another, the name may mean another version
    inputs: RegionInputs
    header: tuple[bytes, bytes]  # the packed InferRequest, before the id and after it
    #: Responses by the worker's packed InferResponse, whether they are streamed, and whether they are the last.
    responses: dict[tuple[bytes, bool, bool], RegionResponse]

    def respond(self, id_: str, packed: bytes, block: memoryview, *, stream: bool, final: bool) -> wire.Chunks | None:
        """Write the outputs in a worker's block into their regions; returns the message that says so. None where it has
        to be rendered in full."""
        known = self.responses.get((packed, stream, final))
        if known is None or known.outputs.end > len(block):
            return None
        try:
            known.outputs.write(block)
        except ShoalError:
            return None  # rendered in full, it gets the same error again
        no_data = (b"",) * len(known.around.parts)
        return [b"".join(wire.assemble(known.around, id_, no_data, is_streamed=stream))]

    def keep_response(
        self, packed: bytes, response: InferResponse, around: wire.Envelope, *, stream: bool, final: bool
    ) -> None:
        """Keep the bytes of a response that was rendered in full, if all of its outputs are in regions."""
        outputs = outputs_in_regions(self.prepared, response)
        if outputs is not None and len(self.responses) < _MAX_RESPONSES:
            self.responses[packed, stream, final] = RegionResponse(around, outputs)


def make_template(
    prepared: PreparedRequest, num_changes: int, pattern: wire.WirePattern | None
) -> RegionTemplate | None:
    """The template of a request that has been prepared in full; None if it has none."""
    inputs = inputs_in_regions(prepared)
    if inputs is None:
        return None
    kept = replace(prepared, id="", inputs=())
    return RegionTemplate(kept, pattern, num_changes, inputs, around_id(kept.pack_header(inputs.refs)), {})
