"""The trace extension's endpoints: what they ask the supervisor, and what they refuse themselves."""

import json
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from tests.frontend.conftest import Client, EchoTransport

ANSWER = {"trace_level": ["OFF"], "trace_rate": "1000"}
ALL, OF_SIMPLE = "/v2/trace/setting", "/v2/models/simple/trace/setting"


@pytest.fixture(autouse=True)
def _answered(transport: EchoTransport) -> None:
    transport.answers["trace_settings"] = ANSWER


@pytest.mark.parametrize(
    ("method", "path", "body", "model", "changes"),
    [
        ("GET", ALL, b"", "", None),
        ("GET", OF_SIMPLE, b"", "simple", None),
        ("POST", ALL, b"", "", {}),
        ("POST", OF_SIMPLE, b"{}", "simple", {}),
        ("POST", OF_SIMPLE, b'{"trace_rate":"5","trace_level":["OFF"]}', "simple", {"level": 0, "rate": 5}),
        ("POST", ALL, b'{"trace_count":null}', "", {"count": None}),
    ],
)
def test_the_supervisor_is_asked(
    client: Client, transport: EchoTransport, method: str, path: str, body: bytes, model: str, changes: Any
) -> None:
    status, headers, sent = client.ask(method, path, body)
    assert (status, headers, json.loads(sent)) == (200, [("Content-Type", "application/json")], ANSWER)
    assert transport.asked == [("trace_settings", {"model": model, "changes": changes})]


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v2/models/none/trace/setting", b"{", 400, "Request for unknown model : none"),
        ("/v2/models/loading/trace/setting", b"", 400, "Request for unknown model : loading"),
        (ALL, b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (ALL, b'{"trace_file":"x"}', 501, "trace file location can not be updated through network protocol"),
        (ALL, b'{"trace_rate":1}', 500, "attempt to access JSON non-string as string"),
        (ALL, b'{"trace_rate":"x"}', 400, "Unable to parse 'trace_rate', got: x"),
    ],
)
def test_what_is_refused_here_is_not_asked(
    client: Client, transport: EchoTransport, path: str, body: bytes, status: int, sentence: str
) -> None:
    answered, _, sent = client.ask("POST", path, body)
    assert (answered, json.loads(sent)) == (status, {"error": sentence})
    assert transport.asked == []


def test_what_the_supervisor_refuses_is_the_answer(client: Client, transport: EchoTransport) -> None:
    sentence = "Attempting to set invalid trace setting :sample rate must be non-zero"
    transport.answers["trace_settings"] = InvalidArgumentError(sentence)
    status, _, sent = client.ask("POST", ALL, b'{"trace_rate":"0"}')
    assert (status, json.loads(sent)) == (400, {"error": sentence})
