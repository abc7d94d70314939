"""The trace extension: which requests are traced, asked and set while the server runs. The supervisor knows.

Front-end processes; waits for the supervisor, so the road only.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import ANSWER_S, Ask
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.tracer.settings import Changes, read_changes


def trace_settings(state: ServerState, ask: Ask, model: str) -> Response:
    """What holds for a model, or for all where `model` is ""."""
    check_model(state, model)
    return json_response(200, settings_of(ask, model, None))


def change_trace_settings(state: ServerState, ask: Ask, model: str, body: memoryview) -> Response:
    """The same after a change. It is in force in every process before the answer leaves."""
    check_model(state, model)
    changes = read_changes(read_json(body, state.http_max_input_size)) if body else {}
    return json_response(200, settings_of(ask, model, changes))


def check_model(state: ServerState, model: str) -> None:
    """Raise InvalidArgumentError for one that is not READY; before anything is read, as in Triton."""
    if model and not state.models.ready_entries(model):
        raise InvalidArgumentError(f"Request for unknown model : {model}")


def settings_of(ask: Ask, model: str, changes: Changes | None) -> dict[str, Any]:
    """What holds for a model after changes, or as it is where there are none to make."""
    answer: dict[str, Any] = ask("trace_settings", {"model": model, "changes": changes}, ANSWER_S)
    return answer
