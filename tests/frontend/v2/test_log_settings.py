"""frontend/v2/log_settings.py: the settings as the protocol names them, which changes are asked of the supervisor."""

import json
from typing import Any

import pytest

from shoal.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.log_settings import change_log_settings, log_settings, parse_changes
from tests.frontend.calls import call_of

SETTINGS = {"log_verbose": 3, "log_info": False, "log_warning": True, "log_error": True, "log_format": "ISO8601"}
TOLD = {
    "log_file": "/var/log/x", "log_info": False, "log_warning": True, "log_error": True, "log_verbose_level": 3,
    "log_format": "ISO8601",
}  # fmt: skip

NO_FILE = "log file location can not be updated through network protocol"
NO_LEVEL = "attempt to access JSON non-unsigned-integer as unsigned-integer"


def body(response: Response) -> Any:
    assert (response.status, response.headers) == (200, (("Content-Type", "application/json"),))
    return json.loads(bytes(response.chunks[0]))


class Supervisor:
    """Takes what it is asked, and answers with what the test has put in."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        assert timeout_s == 10.0
        self.asked.append((verb, arguments))
        return self.answer


def test_the_settings_as_triton_orders_them() -> None:
    told = body(log_settings(call_of(ServerState(log_file="/var/log/x", log_settings=SETTINGS))))
    assert list(told.items()) == list(TOLD.items())


def test_a_change_is_asked_for_and_the_answer_told() -> None:
    supervisor = Supervisor(SETTINGS)
    text = b'{"log_verbose_level":3,"log_format":"ISO8601","log_info":false,"log_error":null,"other":1}'
    state = ServerState(log_file="/var/log/x")
    assert body(change_log_settings(call_of(state, supervisor.ask, body=text))) == TOLD
    changes = {"log_verbose": 3, "log_format": "ISO8601", "log_info": False}
    assert supervisor.asked == [("log_settings", {"changes": changes})]


@pytest.mark.parametrize("request_", [{}, [], None, 1, {"log_file": None, "log_info": None, "log_format": None}])
def test_what_changes_nothing(request_: Any) -> None:
    assert parse_changes(request_) == {}


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"log_file": ""}, UnsupportedError, NO_FILE),
        ({"log_info": 1, "log_file": 1}, UnsupportedError, NO_FILE),
        ({"log_format": "iso8601"}, UnavailableError, "invalid argument for --log_format, got: iso8601"),
        ({"log_format": 1}, InternalError, "attempt to access JSON non-string as string"),
        ({"log_info": 1}, InternalError, "attempt to access JSON non-boolean as boolean"),
        ({"log_warning": "true"}, InternalError, "attempt to access JSON non-boolean as boolean"),
        ({"log_format": "x", "log_error": []}, InternalError, "attempt to access JSON non-boolean as boolean"),
        ({"log_verbose_level": -1}, InternalError, NO_LEVEL),
        ({"log_verbose_level": 1.0}, InternalError, NO_LEVEL),
        ({"log_verbose_level": True}, InternalError, NO_LEVEL),
        ({"log_verbose_level": 2**64}, InternalError, NO_LEVEL),
    ],
    ids=str,
)
def test_what_is_refused_changes_nothing(request_: Any, error: type[ShoalError], sentence: str) -> None:
    supervisor = Supervisor(SETTINGS)
    # Beside a change that is right.
    for first in ({"log_error": False} | request_, request_ | {"log_error": request_.get("log_error", False)}):
        with pytest.raises(error) as refusal:
            change_log_settings(call_of(ServerState(), supervisor.ask, body=json.dumps(first).encode()))
        assert (type(refusal.value), str(refusal.value)) == (error, sentence)
    assert supervisor.asked == []


def test_an_empty_body_is_no_json() -> None:
    with pytest.raises(InternalError, match=r"^failed to parse the request JSON buffer: The document is empty\. at 0$"):
        change_log_settings(call_of(ServerState(), Supervisor(SETTINGS).ask))


def test_the_log_s_settings_are_changed_by_the_supervisor(client: Any, transport: Any) -> None:
    transport.answers["log_settings"] = {
        "log_verbose": 2, "log_info": True, "log_warning": True, "log_error": True, "log_format": "default",
    }  # fmt: skip
    status, headers, told = client.ask("POST", "/v2/logging", b'{"log_verbose_level":2}')
    assert (status, headers, json.loads(told)["log_verbose_level"]) == (200, [("Content-Type", "application/json")], 2)
    assert transport.asked == [("log_settings", {"changes": {"log_verbose": 2}})]
    transport.answers["log_settings"] = UnavailableError("no answer")
    assert client.ask("POST", "/v2/logging", b"{}") == (
        503,
        [("Content-Type", "application/json")],
        b'{"error":"no answer"}',
    )
