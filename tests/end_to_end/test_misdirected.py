"""Requests that miss their aim: of a wrong size, to a model that is not ready, to the port of another protocol."""

import subprocess
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import DEADLINE_S, Server


def post(server: Server, path: str, body: Any) -> tuple[int, str]:
    reply = fetch(server.http_port, path, body)
    return reply.status, reply.json["error"]


@pytest.mark.parametrize("count", [15, 17])
def test_data_of_another_length_than_the_shape(samples: Server, count: int) -> None:
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [1] * (count if name == "INPUT1" else 16)}
        for name in ("INPUT0", "INPUT1")
    ]
    assert post(samples, "/v2/models/simple/infer", {"inputs": inputs}) == (
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field. "
        f"Input 'INPUT1' has 16 elements by its shape, but {count} in its data",
    )


def test_a_model_that_failed_to_load_says_where_its_reason_is(every_kind: Server) -> None:
    sentence = "Request for unknown model: 'broken' has no available versions. POST /v2/repository/index says why"
    assert post(every_kind, "/v2/models/broken/infer", {"inputs": []}) == (404, sentence)
    with (
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{every_kind.grpc_port}") as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.get_model_metadata("broken")
    assert caught.value.message() == sentence
    with tritonclient.http.InferenceServerClient(every_kind.url) as asking:
        (reason,) = [row["reason"] for row in asking.get_model_repository_index() if row["name"] == "broken"]
    assert reason


def test_http_on_grpc_s_port(samples: Server) -> None:
    done = subprocess.run(
        ["curl", "-sS", "-w", "%{http_code}", f"http://127.0.0.1:{samples.grpc_port}/v2/health/ready"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("400")
    assert "This port speaks gRPC" in done.stdout
    assert "--http-port" in done.stdout
