"""frontend/v2/model_repository.py: what is asked of the supervisor, and what is refused before, in Triton's order."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.model_repository import index, load, refuse_repository_name, unload
from shoal.star.model_control import MAX_CONFIG_BYTES
from shoal.star.questions import NoAnswerError
from tests.frontend.calls import call_of

JSON = (("Content-Type", "application/json"),)
DONE = Response(200, JSON)
ROWS = [
    {"name": "a", "version": "1", "state": "READY"},
    {"name": "a", "version": "2", "state": "UNAVAILABLE", "reason": "Internal: no"},
    {"name": "on disk"},
]


def body(value: Any) -> memoryview:
    return memoryview(value if isinstance(value, bytes) else json.dumps(value).encode())


def refused(call: Any, kind: type[ShoalError], sentence: str) -> None:
    with pytest.raises(ShoalError) as raised:
        call()
    assert (type(raised.value), str(raised.value)) == (kind, sentence)


@pytest.fixture
def explicit(state: ServerState) -> ServerState:
    state.model_control_mode = "explicit"
    return state


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# --- index ---


@pytest.mark.parametrize(
    ("request_", "rows"),
    [(b"", ROWS), ({}, ROWS), ([], ROWS), ({"ready": False, "x": 1}, ROWS), ({"ready": True}, ROWS[:1])],
)
def test_the_index_is_the_supervisor_s(state: ServerState, transport: Any, request_: Any, rows: Any) -> None:
    transport.answers["index"] = ROWS
    response = index(call_of(state, transport.ask, body=body(request_)))
    assert (response.status, response.headers, json.loads(bytes(response.chunks[0]))) == (200, JSON, rows)
    assert transport.asked == [("index", {})]


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_ready_is_a_boolean(state: ServerState, transport: Any, value: Any) -> None:
    refused(
        lambda: index(call_of(state, transport.ask, body=body({"ready": value}))),
        InvalidArgumentError,
        "Invalid value for 'ready': expected a boolean",
    )
    assert transport.asked == []


# --- load and unload ---


def test_a_load_without_a_body(explicit: ServerState, transport: Any) -> None:
    transport.answers["load"] = None
    for sent in (b"", b"{}", b'{"parameters":{}}', b"[]"):
        assert load(call_of(explicit, transport.ask, "m", body=body(sent))) == DONE
        assert transport.asked.pop() == ("load", {"model": "m", "config": None, "directory": None})


def test_a_load_with_a_configuration(explicit: ServerState, transport: Any, temporary: Path) -> None:
    transport.answers["load"] = None
    assert load(call_of(explicit, transport.ask, "m", body=body({"parameters": {"config": ""}}))) == DONE
    assert transport.asked == [("load", {"model": "m", "config": "", "directory": None})]
    assert list(temporary.iterdir()) == []


FILES = {"parameters": {"file:1/m": "AAEC", "config": "{}", "file:l": ""}}


def test_files_are_handed_over_to_the_supervisor(explicit: ServerState, transport: Any, temporary: Path) -> None:
    transport.answers["load"] = None
    assert load(call_of(explicit, transport.ask, "m", body=body(FILES))) == DONE
    ((verb, arguments),) = transport.asked
    directory = Path(arguments["directory"])
    assert (verb, arguments["config"], directory.parent) == ("load", "{}", temporary)
    assert ((directory / "1" / "m").read_bytes(), (directory / "l").read_bytes()) == (b"\0\1\2", b"")


def test_what_the_supervisor_refuses_stays_nowhere(explicit: ServerState, transport: Any, temporary: Path) -> None:
    transport.answers["load"] = InvalidArgumentError("load failed for model 'm': …")
    refused(
        lambda: load(call_of(explicit, transport.ask, "m", body=body(FILES))),
        InvalidArgumentError,
        "load failed for model 'm': …",
    )
    assert list(temporary.iterdir()) == []


def test_what_the_supervisor_may_still_load_stays(explicit: ServerState, transport: Any, temporary: Path) -> None:
    transport.answers["load"] = NoAnswerError("late")
    refused(lambda: load(call_of(explicit, transport.ask, "m", body=body(FILES))), NoAnswerError, "late")
    assert len(list(temporary.iterdir())) == 1


def test_unloading(explicit: ServerState, transport: Any) -> None:
    transport.answers["unload"] = None
    for sent, dependents in (
        (b"", False),
        ({"parameters": {}}, False),
        ({"parameters": 1}, False),
        ({"parameters": {"unload_dependents": False, "x": 1}}, False),
        ({"parameters": {"unload_dependents": True}}, True),
    ):
        assert unload(call_of(explicit, transport.ask, "m", body=body(sent))) == DONE
        assert transport.asked.pop() == ("unload", {"model": "m", "unload_dependents": dependents})


BROKEN = "failed to parse the request JSON buffer: Missing a name for object member. at 1"
NON_STRING = "attempt to access JSON non-string as string"
CONTROL = "explicit model load / unload is not allowed if polling is enabled"
OUTSIDE = "Invalid file parameter 'file:../x' with normalized path '../x' must stay within model directory."

REFUSED: list[tuple[Any, Any, type[ShoalError], str]] = [
    (index, b"{1", InternalError, BROKEN),
    (load, b"{1", InternalError, BROKEN),
    (unload, b"{1", InternalError, BROKEN),
    (load, {"parameters": []}, InternalError, "attempt to get members for non-object"),
    (load, {"parameters": None}, InternalError, "attempt to get members for non-object"),
    (load, {"parameters": {"config": {}}}, InternalError, NON_STRING),
    (load, {"parameters": {"file:1": 1}}, InternalError, NON_STRING),
    (load, {"parameters": {"x": "y"}}, InternalError, "unexpected error on creating Triton parameter"),
    (load, {"parameters": {"x": 1}}, InternalError, NON_STRING),
    (
        load,
        {"parameters": {"config": "x" * (MAX_CONFIG_BYTES + 1)}},
        InvalidArgumentError,
        "Load parameter 'config' has more than the maximum of 4194304 bytes",
    ),
    (
        unload,
        {"parameters": {"unload_dependents": 1}},
        InternalError,
        "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean",
    ),
    (load, {"parameters": {"file:../x": "", "file:1/x": "A"}}, InvalidArgumentError, OUTSIDE),
    (
        load,
        {"parameters": {"file:1/x": "A"}},
        InvalidArgumentError,
        "Load parameter 'config' must be specified for model file override",
    ),
]


@pytest.mark.parametrize(("handler", "sent", "kind", "sentence"), REFUSED)
def test_the_supervisor_is_not_asked_about_a_refused_load(
    explicit: ServerState, transport: Any, temporary: Path, handler: Any, sent: Any, kind: Any, sentence: str
) -> None:
    explicit.max_request_bytes = 1 << 30
    refused(lambda: handler(call_of(explicit, transport.ask, "m", body=body(sent))), kind, sentence)
    assert (transport.asked, list(temporary.iterdir())) == ([], [])


@pytest.mark.parametrize("handler", [load, unload])
@pytest.mark.parametrize("mode", ["none", "poll"])
def test_the_mode_comes_after_the_json_and_before_the_files(
    state: ServerState, transport: Any, temporary: Path, handler: Any, mode: str
) -> None:
    state.model_control_mode = mode
    for sent in (b"", {"parameters": {"file:../x": ""}}, FILES):
        refused(
            lambda sent=sent: handler(call_of(state, transport.ask, "m", body=body(sent))), UnavailableError, CONTROL
        )
    refused(lambda: handler(call_of(state, transport.ask, "m", body=body(b"{1"))), InternalError, BROKEN)
    assert (transport.asked, list(temporary.iterdir())) == ([], [])


def test_a_server_that_stops_does_neither(explicit: ServerState, transport: Any) -> None:
    explicit.exiting = True
    for handler in (load, unload):
        refused(
            lambda handler=handler: handler(call_of(explicit, transport.ask, "m", body=body(b""))),
            UnavailableError,
            "Server not ready",
        )
    refused(lambda: index(call_of(explicit, transport.ask)), UnavailableError, "Server not ready")


def test_a_load_may_be_as_large_as_a_body(explicit: ServerState, transport: Any) -> None:
    transport.answers["load"] = None
    explicit.http_max_input_size, explicit.max_request_bytes = 10, 1000
    assert load(call_of(explicit, transport.ask, "m", body=body({"parameters": {"config": "x" * 100}}))) == DONE


def test_repositories_have_no_names_here() -> None:
    refused(lambda: refuse_repository_name(None), UnsupportedError, "'repository_name' specification is not supported")
