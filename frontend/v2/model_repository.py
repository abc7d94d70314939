"""The model repository extension: lists the models, and loads or unloads one. Runs on the road.

The supervisor does all of it; here requests are read and checked, in Triton's order: JSON, parameters, whether the
server is ready, whether it may load models, files. So files of a request that the operator does not allow are never
written to disk.
"""

from typing import Any

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.frontend import read_json as door
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import JSON_CONTENT, Response, json_response
from shoal.frontend.state import ServerState
from shoal.star import model_control
from shoal.star.file_overrides import PREFIX
from shoal.star.questions import Ask

_DONE = Response(200, JSON_CONTENT)


@blocking
def index(call: HandlerCall) -> Response:
    """A row for each known version, and for each model on disk that was never loaded. Raises InvalidArgumentError."""
    request = read_json(call.body, call.state.http_max_input_size) if call.body else {}
    only_ready = request["ready"] if door.has(request, "ready") else False
    if type(only_ready) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    return json_response(200, rows(call.state, call.ask, only_ready=only_ready))


def rows(state: ServerState, ask: Ask, *, only_ready: bool) -> list[dict[str, Any]]:
    """The rows of the index."""
    state.require_ready()
    return [row for row in ask("index", {}) if not only_ready or row.get("state") == "READY"]


@blocking
def load(call: HandlerCall) -> Response:
    """Load a model, or its newest files if it is loaded; responds once it serves. The body may contain a configuration
    and files."""
    request = read_json(call.body, call.state.max_request_bytes) if call.body else {}
    load_model(call.state, call.ask, call.name, *_parse_load(request))
    return _DONE


def load_model(state: ServerState, ask: Ask, name: str, config: str | None, contents: dict[str, Any]) -> None:
    """Load a model as `load` does, given the configuration and the files by parameter (model_control.py). Raises
    ShoalError."""
    model_control.check_config(config)
    _require_control(state)
    model_control.load(ask, name, config, contents)


def _parse_load(request: Any) -> tuple[str | None, dict[str, str]]:
    """The configuration and the files in a request, still as they were sent."""
    config = None
    contents: dict[str, str] = {}
    parameters = request["parameters"] if door.has(request, "parameters") else {}
    if type(parameters) is not dict:
        raise InternalError("attempt to get members for non-object")
    for key, value in parameters.items():
        if type(value) is not str:
            raise InternalError(door.wrong_type("string"))
        if key == "config":
            config = value
        elif key.startswith(PREFIX):
            contents[key] = value
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return config, contents


@blocking
def unload(call: HandlerCall) -> Response:
    """Begin to unload a model: requests that it has are finished, new ones are refused."""
    request = read_json(call.body, call.state.http_max_input_size) if call.body else {}
    parameters = request["parameters"] if door.has(request, "parameters") else {}
    unload_dependents = door.has(parameters, "unload_dependents") and door.as_bool(
        parameters["unload_dependents"], "unload_dependents"
    )
    unload_model(call.state, call.ask, call.name, unload_dependents=unload_dependents)
    return _DONE


def unload_model(state: ServerState, ask: Ask, name: str, *, unload_dependents: bool) -> None:
    """Begin to unload a model, as `unload` does. Raises ShoalError."""
    _require_control(state)
    ask("unload", {"model": name, "unload_dependents": unload_dependents})


def _require_control(state: ServerState) -> None:
    state.require_ready()
    if state.model_control_mode != "explicit":
        # Triton's words, even where nothing is polled.
        raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")


def refuse_repository_name(_call: object) -> Response:
    """Refuse to load from, or unload of, one of several repositories. Raises UnsupportedError."""
    raise repository_name_unsupported()


def repository_name_unsupported() -> UnsupportedError:
    """The error for a request that names a repository."""
    return UnsupportedError("'repository_name' specification is not supported")
