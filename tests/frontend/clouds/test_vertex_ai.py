"""frontend/clouds/vertex_ai.py: the two routes, and where a redirect leads, asked of the handlers straight."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.frontend.clouds.vertex_ai import admit_vertex_ai
from shoal.frontend.response import Response
from shoal.frontend.router import answer
from shoal.frontend.state import ServerState

MIME = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TENSOR = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 2]}
INPUTS = [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [5] * 16} for i in (0, 1)]
PLAIN = json.dumps({"inputs": INPUTS}).encode()
METRICS = Response(200, (), (b"nv_",))


def metrics(_state: ServerState, method: str, target: str, _headers: Mapping[str, str]) -> Response:
    assert (method, target) == ("GET", "/metrics")
    return METRICS


@pytest.fixture
def ask(state: ServerState, transport: Any) -> Any:
    transport.answers = {"index": [{"name": "simple"}]}

    def ask(method: str, target: str, body: bytes = b"", redirect: str | None = None, **headers: str) -> Response:
        lower = {name.replace("_", "-"): value for name, value in headers.items()}
        if redirect is not None:
            lower["x-vertex-ai-triton-redirect"] = redirect
        found = admit_vertex_ai(state, method, target, lower, metrics=metrics)
        return found if isinstance(found, Response) else answer(found, state, transport, lower, memoryview(body))

    return ask


def test_health(ask: Any, state: ServerState) -> None:
    assert ask("GET", "/health") == Response(400)  # `loading` is not ready
    state.strict_readiness = False
    assert ask("GET", "/health?x=1") == Response(200)
    assert ask("POST", "/health").status == 405


@pytest.mark.parametrize("path", ["/v2/health/live", "/", "/predict/", "/metrics", "/v2/models/simple/infer"])
def test_other_paths(ask: Any, path: str) -> None:
    assert ask("POST", path) == Response(400)


def test_predictions_ask_the_default_model(ask: Any) -> None:
    response = ask("POST", "/predict", PLAIN)
    assert (response.status, json.loads(response.chunks[0])["model_name"]) == (200, "simple")
    assert ask("GET", "/predict").status == 405


def test_predictions_in_binary(ask: Any, state: ServerState) -> None:
    state.vertex_ai_default_model = "écho b"
    data = b"\1\0\0\0a\1\0\0\0b"
    request = {"inputs": [{**TENSOR, "parameters": {"binary_data_size": len(data)}}]}
    head = json.dumps({**request, "parameters": {"binary_data_output": True}}).encode()
    for redirect in (None, "v2/models/%C3%A9cho%20b/infer"):
        response = ask("POST", "/predict", head + data, redirect, content_type=f"{MIME}{len(head)}")
        text, *tensors = response.chunks
        length = ("Inference-Header-Content-Length", str(len(text)))
        assert (response.status, response.headers) == (200, (("Content-Type", "application/octet-stream"), length))
        assert b"".join(tensors) == data


def test_what_is_wrong_has_triton_s_status(ask: Any) -> None:
    assert ask("POST", "/predict", b"{}").status == 500
    assert ask("POST", "/predict", PLAIN, "v2/models/none/infer").status == 404


@pytest.mark.parametrize(
    ("redirect", "status"),
    [
        ("v2", 200), ("v2/health/live", 200), ("v2/health/ready", 400), ("v2/models/stats", 200),
        ("v2/models/simple", 200), ("v2/models/simple/versions/1", 200), ("v2/models/simple/ready", 200),
        ("v2/models/simple/config", 200), ("v2/models/simple/versions/3/stats", 200), ("v2/models/asleep/ready", 400),
        ("v2/repository/index", 200), ("v2/repository/R/index", 200),
        ("v2/systemsharedmemory/status", 200), ("v2/cudasharedmemory/region/r/status", 404),
    ],
)  # fmt: skip
def test_where_a_redirect_leads(ask: Any, redirect: str, status: int) -> None:
    assert ask("POST", "/predict", b"", redirect).status == status
    assert ask("GET", "/predict", b"", redirect).status == 405


@pytest.mark.parametrize(
    "redirect",
    [
        "v2/repository/models/simple/load", "v2/repository/models/simple/unload", "v2/repository/R/models/m/load",
        "v2/systemsharedmemory/region/r/register", "v2/systemsharedmemory/unregister",
        "v2/cudasharedmemory/region/r/register", "v2/cudasharedmemory/region/r/unregister",
    ],
)  # fmt: skip
def test_what_changes_the_server_is_403(ask: Any, transport: Any, redirect: str) -> None:
    response = ask("POST", "/predict", b"", redirect)
    assert (response.status, json.loads(response.chunks[0])) == (
        403,
        {"error": f"'{redirect}' is not for redirects of Vertex AI; ask Triton's HTTP API for it"},
    )
    assert transport.asked == []


@pytest.mark.parametrize(
    "redirect",
    [
        "", "/v2", "v2/", "v2/logging", "v2/trace/setting", "v2/models/simple/generate", "v2/models/simple/other",
        "v2/health/reasons", "models/simple", "v2/repository/models/simple/instances", "metrics/", "v2?x=1",
    ],
)  # fmt: skip
def test_where_no_redirect_leads(ask: Any, redirect: str) -> None:
    assert ask("POST", "/predict", PLAIN, redirect) == Response(400)


def test_what_is_restricted(ask: Any, state: ServerState) -> None:
    state.restrictions = {"inference": ("Key", "x"), "statistics": ("Key", "x")}
    assert ask("POST", "/predict", PLAIN).status == 403
    assert ask("POST", "/predict", PLAIN, "v2/models/stats").status == 403
    assert ask("POST", "/predict", PLAIN, key="x").status == 200
    assert ask("GET", "/health").status == 400
