"""Health: is the server alive, is it ready, is a model ready. Pure handlers, run in front-end processes.

Triton answers a plain no with an empty 400, a server that is stopping with 503 and a sentence.
"""

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.response import Response
from shoal.frontend.state import ModelEntry, ServerState

_YES = Response(200)
_NO = Response(400)


def live(state: ServerState) -> Response:
    """200 once the server has started."""
    _refuse_while_exiting(state)
    return _YES if state.started else _NO


def ready(state: ServerState) -> Response:
    """200 once the server has started; under strict readiness only while every model can answer."""
    _refuse_while_exiting(state)
    if not state.started:
        return _NO
    if state.strict_readiness and not all(_is_settled(entry) for entry in state.models.entries()):
        return _NO
    return _YES


def model_ready(state: ServerState, name: str, version: str | None) -> Response:
    """200 if this version, or the one that answers for the model, has a live instance."""
    state.require_ready()
    if not state.models.lookup(name, version).ready:
        raise InvalidArgumentError("Model version not ready")
    return _YES


def _is_settled(entry: ModelEntry) -> bool:
    if entry.state == "READY":
        return entry.ready
    return entry.state == "UNAVAILABLE" and entry.reason == "unloaded"


def _refuse_while_exiting(state: ServerState) -> None:
    if state.exiting:
        raise UnavailableError("Server exiting")
