"""Health over HTTP: whether the server is alive and ready, and whether a model is.

Handlers of front-end processes, which do not wait, except for a model with an is_ready of its own: the supervisor asks
the model, so such a request is answered on the road. As in Triton, the response for a server that is not ready is 400
without a body, that for a model has a body with an error, and a server that is stopping answers 503 with an error. A
further path, which Triton lacks, returns the reasons as
JSON.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response, json_response
from shoal.star.known_server import is_live, is_model_ready, is_server_ready, is_settled
from shoal.star.models import NO_VERSION, ModelEntry

_YES = Response(200)
_NO = Response(400)


def live(call: HandlerCall) -> Response:
    """200 once the server has started and read its repositories."""
    return _YES if is_live(call.state) else _NO


def ready(call: HandlerCall) -> Response:
    """`live`; under strict readiness 200 only while every model can answer, too."""
    return _YES if is_server_ready(call.state) else _NO


def reasons(call: HandlerCall) -> Response:
    """The result of `ready` as 200 or 503, with a row for each version that cannot answer or has lost an instance.

    A row begins like one in Triton's repository index. Why an instance ended is only in the log, since every client of
    the models may read this path.
    """
    is_ready = is_server_ready(call.state)
    rows = [_row(entry) for entry in call.state.models.entries() if not _is_whole(entry)]
    return json_response(200 if is_ready else 503, {"ready": is_ready, "reasons": rows})


def model_ready(call: HandlerCall) -> Response:
    """200 if the version in the path, or else the default version, has a live instance and the model's own
    is_ready, if any, does not deny it (a lane hands such a request over: RouteMatch.asks_model). Raises
    InvalidArgumentError if the version is not ready."""
    if not is_model_ready(call.state, call.ask, call.name, call.version):
        raise InvalidArgumentError("Model version not ready")
    return _YES


def _is_whole(entry: ModelEntry) -> bool:
    return (
        entry.is_polled
        and is_settled(entry)
        and (entry.state != "READY" or entry.num_instances_up == entry.num_instances)
    )


def _row(entry: ModelEntry) -> dict[str, Any]:
    version = {} if entry.version == NO_VERSION else {"version": str(entry.version)}
    return {
        "name": entry.name,
        **version,
        "state": entry.state,
        "reason": entry.reason or f"{entry.num_instances_up}/{entry.num_instances} instances up",
        "instances_up": entry.num_instances_up,
        "instances": entry.num_instances,
    }
