"""Health: is the server alive, is it ready, is a model ready. Run in front-end processes, and pure: a model that has a
word in it is asked through the supervisor, on the road.

Triton answers a plain no with an empty 400, a server that is stopping with 503 and a sentence. Why not, in JSON, is an
address of ours.
"""

from typing import Any

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.star.models import NO_VERSION, ModelEntry
from shoal.star.questions import Ask
from shoal.star.readiness import is_ready

_YES = Response(200)
_NO = Response(400)


def live(state: ServerState) -> Response:
    """200 once the server has started."""
    return _YES if is_live(state) else _NO


def ready(state: ServerState) -> Response:
    """200 once the server has started; under strict readiness only while every model can answer."""
    return _YES if is_server_ready(state) else _NO


def reasons(state: ServerState) -> Response:
    """What `ready` says, as 200 or 503, with a row for each version that cannot answer or has lost an instance.

    A row begins as one of Triton's repository index. What ended an instance stands in the log, not here: this address
    is as public as the models.
    """
    is_ready = is_server_ready(state)
    rows = [_row(entry) for entry in state.models.entries() if not _is_whole(entry)]
    return json_response(200 if is_ready else 503, {"ready": is_ready, "reasons": rows})


def model_ready(state: ServerState, ask: Ask, name: str, version: str | None) -> Response:
    """200 if this version, or the one that answers for the model, has a live instance and says nothing else itself."""
    if not is_model_ready(state, ask, name, version):
        raise InvalidArgumentError("Model version not ready")
    return _YES


def is_live(state: ServerState) -> bool:
    """Whether the server has started and read its repositories. Raises UnavailableError while it stops, as
    `is_server_ready`."""
    _refuse_while_exiting(state)
    return state.started and state.has_repositories


def is_server_ready(state: ServerState) -> bool:
    """Whether the server has started and, under strict readiness, every model can answer."""
    return is_live(state) and (not state.strict_readiness or all(_is_settled(each) for each in state.models.entries()))


def is_model_ready(state: ServerState, ask: Ask, name: str, version: str | None) -> bool:
    """Whether this version, or the one that answers for the model, is. Raises ShoalError."""
    state.require_ready()
    return is_ready(state.models.lookup(name, version), ask)


def asks_model(state: ServerState, name: str, version: str | None) -> bool:
    """Whether `is_model_ready` asks."""
    try:
        return state.models.lookup(name, version).has_ready_check
    except ShoalError:
        return False


def _is_whole(entry: ModelEntry) -> bool:
    return (
        entry.is_polled
        and _is_settled(entry)
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


def _is_settled(entry: ModelEntry) -> bool:
    # Triton's readiness knows nothing of a model whose configuration it could not take.
    if not entry.is_polled:
        return True
    if entry.state == "READY":
        return entry.ready
    # Triton is not ready while a version drains: a probe would take out a server that was just given a newer one.
    if entry.state == "UNLOADING":
        return True
    return entry.state == "UNAVAILABLE" and entry.reason == "unloaded"


def _refuse_while_exiting(state: ServerState) -> None:
    if state.exiting:
        raise UnavailableError("Server exiting")
