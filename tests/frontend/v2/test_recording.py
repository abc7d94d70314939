"""/v2/recording: which models can be recorded, and what is said of others."""

import json
from typing import Any

import pytest

from tests.frontend.conftest import Client, EchoTransport

NOW: dict[str, Any] = {"folder": "/r", "max_bytes": 1, "recording": [{"models": ["gone"], "sample": 1.0, "left_s": 9}]}
NOTHING = {"model": "", "for_s": 0.0, "sample": 1.0, "max_bytes": 0}


@pytest.fixture(autouse=True)
def _answered(transport: EchoTransport) -> None:
    transport.answers["record"] = NOW


def asked(client: Client, **body: Any) -> tuple[int, Any]:
    status, _, sent = client.ask("POST", "/v2/recording", json.dumps(body).encode())
    return status, json.loads(sent)


@pytest.mark.parametrize("more", [{}, {"for": "0"}], ids=["begin", "end"])
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("nosuch", "Request for unknown model: 'nosuch' is not found"),
        (
            "loading",
            "Request for unknown model: 'loading' has no available versions. POST /v2/repository/index says why",
        ),
    ],
)
def test_a_model_that_cannot_be_recorded_is_named_as_everywhere(
    client: Client, model: str, sentence: str, more: dict[str, str]
) -> None:
    assert asked(client, model=model, **more) == (404, {"error": sentence})


def test_a_recording_of_a_model_that_is_gone_can_be_ended(client: Client, transport: EchoTransport) -> None:
    assert asked(client, model="gone", **{"for": "0"}) == (200, NOW)
    assert transport.asked == [("record", NOTHING), ("record", {**NOTHING, "model": "gone"})]


def test_a_model_is_recorded(client: Client, transport: EchoTransport) -> None:
    assert asked(client, model="simple", sample="10%", **{"for": "1m"}) == (200, NOW)
    assert transport.asked == [("record", {"model": "simple", "for_s": 60.0, "sample": 0.1, "max_bytes": 0})]
