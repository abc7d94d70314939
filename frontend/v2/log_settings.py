"""`/v2/logging`: reading and changing the settings of the log. Handlers of front-end processes.

The supervisor keeps the settings and sends every process a change before it answers, so a client that reads back at
once reads what was changed, whichever process answers.
"""

from collections.abc import Mapping
from typing import Any

from shoal.errors import InternalError, UnavailableError, UnsupportedError
from shoal.frontend import read_json as door
from shoal.frontend.call import ANSWER_S, Ask
from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState

FORMATS = ("default", "ISO8601")

#: The protocol's names → log.configure's, type, what Triton calls it; in the order in which Triton looks at them.
SETTINGS: dict[str, tuple[str, Any, str]] = {
    "log_info": ("log_info", bool, "boolean"),
    "log_warning": ("log_warning", bool, "boolean"),
    "log_error": ("log_error", bool, "boolean"),
    "log_verbose_level": ("log_verbose", int, "unsigned-integer"),
    "log_format": ("log_format", str, "string"),
}


def log_settings(state: ServerState) -> Response:
    """All settings."""
    return json_response(200, describe(state, state.log_settings))


def change_log_settings(state: ServerState, ask: Ask, body: memoryview) -> Response:
    """Change those that the body names; the answer has all of them."""
    return json_response(200, change(state, ask, parse_changes(door.read_json(body, state.http_max_input_size))))


def change(state: ServerState, ask: Ask, changes: dict[str, Any]) -> dict[str, Any]:
    """Have settings changed, which are named as log.configure names them; returns all of them, as `describe`."""
    return describe(state, ask("log_settings", {"changes": changes}, ANSWER_S))


def parse_changes(request: Any) -> dict[str, Any]:
    """The settings that a request names, as arguments of log.configure; null changes nothing. Raises ShoalError.

    All or none: of a request that is refused nothing is in force, where Triton keeps what stood before the mistake.
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
    """All settings, as either protocol names them."""
    return {"log_file": state.log_file, **{name: settings[argument] for name, (argument, _, _) in SETTINGS.items()}}
