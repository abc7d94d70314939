"""The model repository extension: which models there are, loading and unloading one. Runs on the road.

The supervisor knows and does it all; here requests are read, in Triton's order: JSON, parameters, whether the server is
ready, whether it may, files. What an operator has not allowed costs no disk.
"""

from typing import Any

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.frontend import read_json as door
from shoal.frontend.questions import Ask, NoAnswerError
from shoal.frontend.read_json import read_json
from shoal.frontend.response import JSON_CONTENT, Response, json_response
from shoal.frontend.state import ServerState
from shoal.frontend.v2 import file_overrides

#: Ours: a configuration has kilobytes, and it travels in one message.
MAX_CONFIG_BYTES = 4 << 20
_DONE = Response(200, JSON_CONTENT)


def index(state: ServerState, ask: Ask, body: memoryview) -> Response:
    """A row for each known version, and for each model on disk that was never loaded."""
    request = read_json(body, state.http_max_input_size) if body else {}
    only_ready = request["ready"] if door.has(request, "ready") else False
    if type(only_ready) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    state.require_ready()
    rows = ask("index", {})
    return json_response(200, [row for row in rows if not only_ready or row.get("state") == "READY"])


def load(state: ServerState, ask: Ask, name: str, body: memoryview) -> Response:
    """Load a model, or the newest of it; answers once it serves. `body` may bring a configuration and files."""
    config, contents = _parse_load(read_json(body, state.max_request_bytes) if body else {})
    _require_control(state)
    places = file_overrides.place(contents)
    if places and config is None:
        raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
    directory = file_overrides.write(places, contents) if places else None
    contents.clear()  # loading takes its time, and what was sent may be large
    try:
        ask("load", {"model": name, "config": config, "directory": directory})
    except NoAnswerError:
        raise  # the model may be loading from that directory
    except BaseException:
        if directory is not None:
            file_overrides.remove(directory)  # refused: the supervisor has not taken it over
        raise
    return _DONE


def _parse_load(request: Any) -> tuple[str | None, dict[str, str]]:
    """The configuration and the files, as they were sent."""
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
        elif key.startswith(file_overrides.PREFIX):
            contents[key] = value
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    if config is not None and len(config.encode("utf-8", "replace")) > MAX_CONFIG_BYTES:
        raise InvalidArgumentError(f"Load parameter 'config' has more than the maximum of {MAX_CONFIG_BYTES} bytes")
    return config, contents


def unload(state: ServerState, ask: Ask, name: str, body: memoryview) -> Response:
    """Begin to unload a model: its requests are finished, no more are taken."""
    request = read_json(body, state.http_max_input_size) if body else {}
    parameters = request["parameters"] if door.has(request, "parameters") else {}
    unload_dependents = door.has(parameters, "unload_dependents") and door.as_bool(
        parameters["unload_dependents"], "unload_dependents"
    )
    _require_control(state)
    ask("unload", {"model": name, "unload_dependents": unload_dependents})
    return _DONE


def _require_control(state: ServerState) -> None:
    state.require_ready()
    if state.model_control_mode != "explicit":
        # Triton's words, also where nothing is polled.
        raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")


def refuse_repository_name(_call: object) -> Response:
    """Loading from, and unloading of, one of several repositories."""
    raise UnsupportedError("'repository_name' specification is not supported")
