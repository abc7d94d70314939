"""`GET /v1/models` and `GET /v1/models/NAME`: the text and embedding models that are ready. Pure."""

from typing import Any

from shoal.errors import PermissionDeniedError, UnauthenticatedError
from shoal.frontend.access.authorisation import check_named_model
from shoal.frontend.call import HandlerCall
from shoal.frontend.openai.errors import NoSuchModelError
from shoal.frontend.openai.text_model import is_listed
from shoal.frontend.response import Response, json_response


def models(call: HandlerCall) -> Response:
    """The handler of GET /v1/models: the models that the caller may use."""
    names = sorted({entry.name for entry in call.state.models.ready_entries()})
    listed = [_row(call, name) for name in names if _is_served(call, name) and _may_use(call, name)]
    return json_response(200, {"object": "list", "data": listed})


def model(call: HandlerCall) -> Response:
    """The handler of GET /v1/models/NAME. Raises NoSuchModelError."""
    if not _is_served(call, call.name):
        raise NoSuchModelError(f"the model '{call.name}' does not exist: GET /v1/models lists those that do")
    return json_response(200, _row(call, call.name))


def _is_served(call: HandlerCall, name: str) -> bool:
    """Whether the version that a name means is a text or embedding model."""
    ready = call.state.models.ready_entries(name)
    meant = next((entry for entry in ready if entry.is_default), ready[-1] if ready else None)
    # A name in a repository may be no text, which no JSON can have.
    return meant is not None and is_listed(meant) and name.isprintable()


def _may_use(call: HandlerCall, name: str) -> bool:
    try:
        check_named_model(call.state, call.headers, name)
    except (PermissionDeniedError, UnauthenticatedError):
        return False
    return True


def _row(call: HandlerCall, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": call.state.begun_s, "owned_by": "shoal"}
