"""`/v2/logging`: reading and changing the settings of the log. Handlers of front-end processes.

The supervisor holds the settings, and sends a change to every process before it answers. So a client that reads the
settings after a change gets the new settings from any process.
"""

from collections.abc import Mapping
from typing import Any

from shoal.errors import InternalError, UnavailableError, UnsupportedError
from shoal.frontend import read_json as door
from shoal.frontend.call import ANSWER_S, Ask, HandlerCall, blocking
from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState

FORMATS = ("default", "ISO8601", "json")

#: By the protocol's name of a setting: log.configure's name, the type, Triton's name of the type; in the order of
#: Triton's checks.
SETTINGS: dict[str, tuple[str, Any, str]] = {
    "log_info": ("log_info", bool, "boolean"),
    "log_warning": ("log_warning", bool, "boolean"),
    "log_error": ("log_error", bool, "boolean"),
    "log_verbose_level": ("log_verbose", int, "unsigned-integer"),
    "log_format": ("log_format", str, "string"),
}


def log_settings(call: HandlerCall) -> Response:
    """The response with all settings."""
    return json_response(200, describe(call.state, call.state.log_settings))


@blocking
def change_log_settings(call: HandlerCall) -> Response:
    """Change the settings that the body names; the response has all settings."""
    changes = parse_changes(door.read_json(call.body, call.state.http_max_input_size))
    return json_response(200, change(call.state, call.ask, changes))


def change(state: ServerState, ask: Ask, changes: dict[str, Any]) -> dict[str, Any]:
    """Change settings, which have log.configure's names; returns all settings, as `describe` does."""
    return describe(state, ask("log_settings", {"changes": changes}, ANSWER_S))


def parse_changes(request: Any) -> dict[str, Any]:
    """The settings that a request names, as arguments of log.configure; null leaves a setting as it is. Raises
    ShoalError.

    If a request is refused, none of its settings is changed. Triton changes the settings in front of the mistake.
    """
    if door.find(request, "log_file") is not None:
        raise UnsupportedError("log file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    for name, (argument, kind, called) in SETTINGS.items():
        value = door.find(request, name)
        if value is None:
            continue
        if type(value) is not kind or (kind is int and not 0 <= value <= door.MAX_UINT64):
            raise InternalError(door.wrong_type(called))
        if name == "log_format" and value not in FORMATS:
            raise UnavailableError(f"invalid argument for --log_format, got: {value}")
        changes[argument] = value
    return changes


def describe(state: ServerState, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, by the names that HTTP and gRPC have for them."""
    return {"log_file": state.log_file, **{name: settings[argument] for name, (argument, _, _) in SETTINGS.items()}}
