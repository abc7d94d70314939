"""/v2/shadow: a model that there is not is named, and not called one that has no shadow."""

import json

import pytest

from tests.frontend.conftest import Client, EchoTransport

UNKNOWN = {"error": "Request for unknown model: 'nosuch' is not found"}


@pytest.fixture(autouse=True)
def _answered(transport: EchoTransport) -> None:
    transport.answers["shadow"] = {"shadows": [{"model": "gone before"}]}


@pytest.mark.parametrize(
    ("query", "status", "answer"),
    [
        ("", 200, {"shadows": [{"model": "gone before"}]}),
        ("?model=simple", 200, {"shadows": []}),
        ("?model=loading", 200, {"shadows": []}),
        ("?model=gone+before", 200, {"shadows": [{"model": "gone before"}]}),
        ("?model=nosuch", 404, UNKNOWN),
    ],
)
def test_whose_shadows_are_listed(client: Client, query: str, status: int, answer: object) -> None:
    answered, _, sent = client.ask("GET", f"/v2/shadow{query}", b"")
    assert (answered, json.loads(sent)) == (status, answer)


def test_an_unknown_model_gets_no_shadow(client: Client, transport: EchoTransport) -> None:
    body = json.dumps({"model": "nosuch", "version": 2, "of": 1}).encode()
    answered, _, sent = client.ask("POST", "/v2/shadow", body)
    assert (answered, json.loads(sent)) == (404, UNKNOWN)
    assert transport.asked == []
