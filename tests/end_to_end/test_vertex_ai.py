"""Vertex AI's endpoint on a real server: health, predictions, and where a redirect leads."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tritonclient.http as triton

from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, launch, serving_to_the_end

MIME = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
PREDICT, HEALTH = "/v1/endpoints/7/deployedModels/8:predict", "/v1/endpoints/7/deployedModels/8"
ROUTES = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": HEALTH}
FLAGS = ("--allow-vertex-ai=true", "--vertex-ai-port=0")
TENSOR = {"datatype": "INT32", "shape": [1, 16]}
DATA = bytes(range(128))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With `simple` alone, which so is the default."""
    repository = tmp_path_factory.mktemp("models")
    (repository / "simple").symlink_to(SAMPLES / "simple")
    with serving_to_the_end(repository, *FLAGS, environment=ROUTES) as server:
        yield server


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    port = server.port_of("Vertex AI HTTPService")
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        yield connection


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str | None, bytes]:
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, response.getheader("Content-Type"), response.read()


def redirected(connection: http.client.HTTPConnection, redirect: str) -> tuple[int, bytes]:
    status, _, body = ask(connection, "POST", PREDICT, X_Vertex_AI_Triton_Redirect=redirect)
    return status, body


def test_health(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "GET", HEALTH) == (200, None, b"")
    assert ask(connection, "GET", "/v2/health/ready")[0] == 400


def test_predictions(connection: http.client.HTTPConnection) -> None:
    plain = {"inputs": [{"name": f"INPUT{i}", **TENSOR, "data": [i] * 16} for i in (1, 0)]}
    status, content, body = ask(connection, "POST", PREDICT, json.dumps(plain).encode())
    assert (status, content) == (200, "application/json"), body
    assert json.loads(body)["outputs"][0]["data"] == [1] * 16
    inputs = [{"name": f"INPUT{i}", **TENSOR, "parameters": {"binary_data_size": 64}} for i in (0, 1)]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    connection.request("POST", PREDICT, head + DATA, {"Content-Type": f"{MIME}{len(head)}"})
    response = connection.getresponse()
    body = response.read()
    assert (response.status, response.getheader("Content-Type")) == (200, "application/octet-stream"), body
    length = int(response.getheader("Inference-Header-Content-Length", "0"))
    assert len(body) - length == 128
    answer = triton.InferenceServerClient.parse_response_body(body, header_length=length)
    outputs = [answer.as_numpy(name) for name in ("OUTPUT0", "OUTPUT1")]
    assert b"".join(output.tobytes() for output in outputs if output is not None) == body[length:]


def test_redirects(connection: http.client.HTTPConnection) -> None:
    assert redirected(connection, "v2/health/live") == (200, b"")
    assert json.loads(redirected(connection, "v2")[1])["name"] == "triton"
    assert json.loads(redirected(connection, "v2/models/simple/config")[1])["name"] == "simple"
    assert json.loads(redirected(connection, "v2/repository/index")[1])[0]["state"] == "READY"
    assert b'nv_inference_count{model="simple",version="1"}' in redirected(connection, "metrics")[1]
    assert redirected(connection, "v2/repository/models/simple/unload")[0] == 403
    assert redirected(connection, "v2/logging")[0] == 400


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), b"Expect the model repository contains only a single model if default model is not specified"),
        (("--vertex-ai-default-model=none",), b"Expect the default model 'none' is loaded"),
    ],
)
def test_a_server_without_a_default_model_does_not_start(
    tmp_path: Path, flags: tuple[str, ...], sentence: bytes
) -> None:
    server = launch(tmp_path, *FLAGS, *flags, environment=ROUTES)
    assert server.wait() == 1, server.log.decode()
    assert b"failed to start Vertex AI service: Invalid argument - " + sentence in server.log
