"""grpcio's server with mutual TLS, driven by the real tritonclient: one server, whose ledger balances in the end."""

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.end_to_end.grpc_inputs import countdown, pair, tensor
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Ledger, Server, imbalances, only, serving
from tests.frontend.grpc.certificates import self_signed

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PATIENT = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            while not request.is_cancelled():
                time.sleep(0.005)  # Triton's API can be asked, not waited on
        error = pb_utils.TritonError("at last", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for server and clients alike, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: tuple[Path, Path]) -> Iterator[Server]:
    """`patient` answers when its client has cancelled."""
    models = tmp_path_factory.mktemp("models")
    add_model(models, "patient", CONFIG, PATIENT)
    cert, key = files
    flags = [
        "--grpc-port=0", "--http-process-count=1", "--grpc-use-ssl-mutual=true", f"--grpc-server-cert={cert}",
        f"--grpc-server-key={key}", f"--grpc-root-cert={cert}", "--grpc-infer-response-compression-level=high",
        "--grpc-header-forward-pattern=^my-", "--grpc-restricted-protocol=statistics:key=value",
        *only("patient", "simple", "repeat"),
    ]  # fmt: skip
    with serving([SAMPLES, models], *flags) as server:
        yield server
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def triton(server: Server, files: tuple[Path, Path]) -> Iterator[Any]:
    cert, key = map(str, files)
    with client.InferenceServerClient(
        f"localhost:{server.grpc_port}", ssl=True, root_certificates=cert, private_key=key, certificate_chain=cert
    ) as opened:
        yield opened


ONE = [tensor("IN", np.zeros(1, np.float32), "FP32")]


def is_busy(ledger: Ledger) -> bool:
    """Whether anything is in flight, in whatever process, but for connections."""
    return any(what != "connections_open" for _, what, _ in imbalances(ledger))


def is_settled(ledger: Ledger) -> bool:
    return not is_busy(ledger)


def test_unary_calls(triton: Any) -> None:
    result = triton.infer("simple", pair(), request_id="seven", headers={"my-header": "x"})
    assert result.as_numpy("OUTPUT0").tolist() == [list(range(0, 32, 2))]
    assert result.get_response().id == "seven"
    assert triton.is_server_ready()
    assert triton.get_model_config("simple").config.max_batch_size == 8
    assert triton.get_inference_statistics("simple", headers={"triton-grpc-protocol-key": "value"}).model_stats
    with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-key'"):
        triton.get_inference_statistics("simple")
    triton.unload_model("simple")
    triton.load_model("simple")
    with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
        triton.load_model("nope")


def test_who_shows_no_certificate_is_not_let_in(server: Server, files: tuple[Path, Path]) -> None:
    credentials = grpc.ssl_channel_credentials(files[0].read_bytes())
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        live: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError):
            live(b"", timeout=DEADLINE_S)


def test_a_deadline_reaches_the_model(server: Server, triton: Any) -> None:
    with pytest.raises(InferenceServerException) as raised:
        triton.infer("patient", ONE, client_timeout=0.3)
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    server.ledger_once(is_settled)


def test_a_client_that_calls_off_a_request_reaches_the_model(server: Server, triton: Any) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    called = triton.async_infer("patient", ONE, lambda result, error: answers.put(error))
    server.ledger_once(is_busy)
    called.cancel()
    assert "cancelled" in str(answers.get(timeout=DEADLINE_S)).lower()
    server.ledger_once(is_settled)


def test_a_stream(server: Server, triton: Any) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    triton.start_stream(lambda result, error: answers.put((result, error)))
    triton.async_stream_infer("repeat", countdown(0, 1), request_id="a", enable_empty_final_response=True)
    found = [answers.get(timeout=DEADLINE_S)[0].get_response() for _ in range(3)]
    assert [each.parameters["triton_final_response"].bool_param for each in found] == [False, False, True]
    assert [len(each.outputs) for each in found] == [2, 2, 0]
    triton.async_stream_infer("nope", pair())
    assert "unknown model: 'nope'" in str(answers.get(timeout=DEADLINE_S)[1])
    triton.async_stream_infer("repeat", countdown(0, *[20] * 5000))
    assert answers.get(timeout=DEADLINE_S)[1] is None
    triton.stop_stream(cancel_requests=True)
    server.ledger_once(is_settled)  # long before the model would have come to its end


def test_a_server_that_ends_waits_for_no_idle_stream(server: Server, files: tuple[Path, Path]) -> None:
    left = threading.Event()
    messages: Any = service_pb2

    def requests() -> Iterator[bytes]:
        yield messages.ModelInferRequest(model_name="nope").SerializeToString()
        left.wait(DEADLINE_S)

    cert, key = (each.read_bytes() for each in files)
    with grpc.secure_channel(f"localhost:{server.grpc_port}", grpc.ssl_channel_credentials(cert, key, cert)) as channel:
        stream: Any = channel.stream_stream(STREAM)
        answers = stream(requests())
        next(answers)
        begun_s = time.monotonic()
        assert server.stop() == 0, server.log.decode()
        with pytest.raises(grpc.RpcError, match="GRPC server is shutting down"):
            next(answers)
        left.set()
        assert time.monotonic() - begun_s < 15  # of the 30 s that streams at work would get
