"""The model repository extension: lists the models, and loads or unloads a model. Runs on the road.

The supervisor lists, loads and unloads; here requests are read and checked, in Triton's order: JSON, parameters,
whether the server is ready, whether it may load models, files. So the files of a request that the operator does not
allow are never written to disk.

Instances, and changes of their number, are an extension that Triton does not have. `GET` returns the state of each
instance. `POST {"count": 2, "wait": true}` scales each version of the model, or the one in the path, and returns the
state of each instance, too: once all instances are up, or with `"wait": false` at once.
"""

import json
from typing import Any

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from shoal.frontend import read_json as door
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import JSON_CONTENT, Response, json_response
from shoal.frontend.state import ServerState
from shoal.star import model_control
from shoal.star.model_control import PREFIX
from shoal.star.models import parse_version
from shoal.star.questions import Ask

_DONE = Response(200, JSON_CONTENT)
#: The largest number that the message to the supervisor can hold; a model's own bound is far below.
_MAX_COUNT = 2**31 - 1
_MAX_SHOWN = 40


@blocking
def index(call: HandlerCall) -> Response:
    """A row for each known version, and for each model on disk that was never loaded. Raises ShoalError."""
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
    """Load a model, or its newest files if it is loaded; responds once the model is ready. The body may contain a
    configuration and files."""
    request = read_json(call.body, call.state.max_request_bytes) if call.body else {}
    load_model(call.state, call.ask, call.name, *_parse_load(request))
    return _DONE


def load_model(state: ServerState, ask: Ask, name: str, config: str | None, contents: dict[str, Any]) -> None:
    """Load a model as `load` does, given the configuration, and the files by the names of their parameters
    (model_control.py). Raises ShoalError."""
    model_control.check_config(config)
    _require_control(state)
    model_control.load(ask, name, config, contents)


def _parse_load(request: Any) -> tuple[str | None, dict[str, str]]:
    """The configuration and the files in a request, not decoded yet."""
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
    """Begin to unload a model: accepted requests are finished, new ones are refused."""
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
        # Triton's words, also in the mode `none`, which does not poll.
        raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")


def refuse_repository_name(_call: object) -> Response:
    """Refuse to load or unload a model of a named repository. Raises UnsupportedError."""
    raise repository_name_unsupported()


def repository_name_unsupported() -> UnsupportedError:
    """The error for a request that names a repository."""
    return UnsupportedError("'repository_name' specification is not supported")


@blocking
def instances(call: HandlerCall) -> Response:
    """The response with the state, process, device, load and memory of each of a model's instances."""
    return json_response(200, call.ask("instances", {"model": call.name, "version": number_of(call.version)}))


@blocking
def batches(call: HandlerCall) -> Response:
    """The response with the reasons for the sizes of each version's last batches, and what was learned and measured
    about larger batches."""
    return json_response(200, call.ask("explain", {"model": call.name, "version": number_of(call.version)}))


@blocking
def scale(call: HandlerCall) -> Response:
    """Start instances or retire some; the response is like that of `instances`. Raises InvalidArgumentError or
    InternalError for a malformed body."""
    name, number = call.name, number_of(call.version)
    request = read_json(call.body, call.state.http_max_input_size) if call.body else {}
    if type(request) is not dict or "count" not in request:
        raise _wrong(name, 'an object with the number of instances, like {"count": 2}', request)
    count, wait = request["count"], request.get("wait", True)
    if type(count) is not int or not 0 <= count <= _MAX_COUNT:
        raise _wrong(name, "'count' to be a number of instances", count)
    if type(wait) is not bool:
        raise _wrong(name, "'wait' to be true or false", wait)
    arguments = {"model": name, "version": number, "count": count, "wait": wait}
    return json_response(200, call.ask("scale", arguments))


def number_of(version: str | None) -> int | None:
    """The version in a path as a number, or None if the path has none. Raises InvalidArgumentError."""
    return parse_version(version) if version else None


def _wrong(name: str, expected: str, got: Any) -> InvalidArgumentError:
    shown = json.dumps(got, ensure_ascii=False)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return InvalidArgumentError(f"cannot scale model '{name}': expected {expected}, got: {shown}")
