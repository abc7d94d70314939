"""ModelInfer on the road: parse, prepare, submit, wait, render. (A lane answers the calls that need not wait, by
submission.py.)"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shoal.frontend.access.authorisation import check_model
from shoal.frontend.grpc import infer, wire
from shoal.frontend.grpc.service import GrpcCall, refuse_while_exiting
from shoal.frontend.header_forwarding import forwarded_metadata
from shoal.frontend.recorded_headers import as_answered, with_headers
from shoal.frontend.road.inference import with_model
from shoal.star.models import ModelEntry

if TYPE_CHECKING:
    from shoal.frontend.prepared import PreparedRequest
    from shoal.frontend.road.transport import ModelResponse


class Rendered(NamedTuple):
    """A message in pieces. Some pieces are views of the `answer`'s block, valid until the block is released; without an
    `answer` no piece is a view."""

    chunks: wire.Chunks
    answer: "ModelResponse | None"


def model_infer(
    call: GrpcCall, message: bytes | memoryview, run: "Callable[[PreparedRequest], ModelResponse]"
) -> Rendered:
    """Answer a ModelInferRequest; `run` is the transport's infer. Raises ShoalError if the request is refused or
    fails."""
    refuse_while_exiting(call.state)
    request, raws = infer.parse(message)
    check_model(call.key, request.model_name)
    forwarded = forwarded_metadata(call.state.grpc.header_forward_pattern, call.metadata)

    def attempt(entry: ModelEntry) -> Rendered:
        prepared = infer.prepare(entry, request, raws, forwarded, call.state.regions)
        prepared = with_headers(prepared, call.state.recorded_headers, call.metadata)
        prepared = replace(prepared, deadline_ns=call.deadline_ns)
        answer = run(prepared)
        try:
            return Rendered(
                infer.render(as_answered(prepared, answer.other_version), answer.response, answer.block), answer
            )
        except BaseException:
            answer.release()
            raise

    return with_model(lambda: infer.find_model(call.state, request, is_stream=False), attempt)
