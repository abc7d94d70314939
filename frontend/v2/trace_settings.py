"""The trace extension: reading and changing, while the server runs, which requests are traced.

The supervisor holds the settings. Front-end processes; the handlers wait for the supervisor, so only the road runs
them.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import ANSWER_S, Ask, HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.tracer.settings import Changes, read_changes


@blocking
def trace_settings(call: HandlerCall) -> Response:
    """The settings in force for a model, or those for all models if the path names none."""
    check_model(call.state, call.name)
    return json_response(200, settings_of(call.ask, call.name, None))


@blocking
def change_trace_settings(call: HandlerCall) -> Response:
    """Change settings; the response has the settings in force. Every process has them before the response is sent."""
    check_model(call.state, call.name)
    changes = read_changes(read_json(call.body, call.state.http_max_input_size)) if call.body else {}
    return json_response(200, settings_of(call.ask, call.name, changes))


def check_model(state: ServerState, model: str) -> None:
    """Raise InvalidArgumentError for a model that is not READY; called before the body is parsed, as in Triton."""
    if model and not state.models.ready_entries(model):
        raise InvalidArgumentError(f"Request for unknown model : {model}")


def settings_of(ask: Ask, model: str, changes: Changes | None) -> dict[str, Any]:
    """The settings in force for a model, after these changes, if any, have been made."""
    answer: dict[str, Any] = ask("trace_settings", {"model": model, "changes": changes}, ANSWER_S)
    return answer
