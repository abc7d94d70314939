"""Infer and generate requests on the road: prepare, submit, wait, render. Lanes do not wait (http/submission.py).

If a model is reloaded while a request for it is parsed, the request is prepared again, for the new version.
"""

from collections.abc import Callable
from typing import TypeVar

from shoal.errors import UnsupportedError
from shoal.frontend.call import Handler, HandlerCall
from shoal.frontend.generation import PLANNERS, Planner, respond
from shoal.frontend.recorded_headers import as_answered, with_headers
from shoal.frontend.response import Response
from shoal.frontend.v2 import generate as flat
from shoal.frontend.v2.compression import compress, decompress
from shoal.frontend.v2.infer import prepare, render
from shoal.reasons import ModelGoneError
from shoal.star.models import ModelEntry

T = TypeVar("T")

#: Reloads of a model that may happen while one request is parsed; at the next one the request is refused.
_MAX_RELOADS = 3


def infer(call: HandlerCall) -> Response:
    """The handler of POST …/infer."""

    def look_up() -> ModelEntry:
        """The model that the request names. Raises ShoalError if there is no such model, or if it is decoupled."""
        entry = call.state.models.lookup(call.name, call.version)
        if entry.is_decoupled:
            raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
        return entry

    return with_model(look_up, lambda entry: _infer_with(entry, call))


def _infer_with(entry: ModelEntry, call: HandlerCall) -> Response:
    # Counted until the request is answered, since it refers to the decompressed body so long.
    with call.state.upload_budget.expansion() as expand:
        return _infer_body(entry, call, expand)


def _infer_body(entry: ModelEntry, call: HandlerCall, expand: Callable[[int], None]) -> Response:
    limit, regions = call.state.http_max_input_size, call.state.regions
    body = decompress(call.headers, call.body, limit, call.state.max_expansion, expand)
    prepared = prepare(entry, call.headers, body, limit, call.forwarded, regions)
    prepared = with_headers(prepared, call.state.recorded_headers, call.headers)
    reply = call.road.infer(prepared)
    try:
        response = render(as_answered(prepared, reply.other_version), reply.response, reply.block)
        compressed = compress(response, call.headers.get("accept-encoding", ""))
    except BaseException:
        reply.release()
        raise
    return reply.send(compressed)


def generating(plan: Planner) -> Handler:
    """The handler of generate requests that `plan` makes plans of; a lane submits these without calling the handler."""

    def handle(call: HandlerCall) -> Response:
        planned = plan(call)

        def attempt(entry: ModelEntry) -> Response:
            rendering = planned.prepare(entry)
            rendering.prepared = with_headers(rendering.prepared, call.state.recorded_headers, call.headers)
            return respond(rendering, call.road)

        return with_model(lambda: call.state.models.lookup(planned.name, planned.version), attempt)

    PLANNERS[handle] = plan
    return handle


#: The handlers of POST …/generate and …/generate_stream.
generate = generating(flat.planner(flat.FlatOnce))
generate_stream = generating(flat.planner(flat.FlatStream))


def with_model(look_up: Callable[[], ModelEntry], attempt: Callable[[ModelEntry], T]) -> T:
    """Call `attempt` with the model that `look_up` returns, and again if that model is replaced meanwhile. Raises
    ShoalError."""
    entry = look_up()
    for _ in range(_MAX_RELOADS):
        try:
            return attempt(entry)
        except ModelGoneError:
            gone, entry = entry, look_up()
            if entry.model_id == gone.model_id:
                raise
    return attempt(entry)
