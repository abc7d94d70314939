"""gRPC with mutual TLS, driven by the real tritonclient, and by clients that are not let in: one server, whose ledger
balances in the end."""

import os
import queue
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.certificates import Certificates, make_certificates
from tests.end_to_end.grpc_inputs import countdown, pair, tensor
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Ledger,
    Server,
    descendants,
    imbalances,
    only,
    serving,
    title,
    wait_until,
)

CONFIG = config_text("python", "IN FP32 -1", "OUT FP32 -1")
PATIENT = python_model("""
    def execute(self, requests):
        for request in requests:
            while not request.is_cancelled():
                time.sleep(0.005)  # Triton's API can be asked, not waited on
        error = pb_utils.TritonError("at last", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
""")
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The server's and its clients'."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[Server]:
    """`patient` answers when its client has cancelled."""
    models = tmp_path_factory.mktemp("models")
    add_model(models, "patient", CONFIG, PATIENT)
    flags = [
        "--grpc-port=0", "--http-process-count=1", "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={files.server_cert}", f"--grpc-server-key={files.server_key}",
        f"--grpc-root-cert={files.root}", "--grpc-infer-response-compression-level=high",
        "--grpc-header-forward-pattern=^my-", "--grpc-restricted-protocol=statistics:key=value",
        "--exit-timeout-secs=3600", *only("patient", "simple", "repeat"),
    ]  # fmt: skip
    with serving([SAMPLES, models], *flags) as server:
        yield server
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def triton(server: Server, files: Certificates) -> Iterator[Any]:
    root, cert, key = map(str, (files.root, files.client_cert, files.client_key))
    with client.InferenceServerClient(
        f"localhost:{server.grpc_port}", ssl=True, root_certificates=root, private_key=key, certificate_chain=cert
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


def credentials(trusts: Certificates, shows: Certificates | None) -> grpc.ChannelCredentials:
    """A client's, who trusts an authority and shows a certificate."""
    root = trusts.root.read_bytes()
    if shows is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, shows.client_key.read_bytes(), shows.client_cert.read_bytes())


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority's."""
    return make_certificates(tmp_path_factory.mktemp("others"))


def is_refused(channel: grpc.Channel) -> bool:
    live: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
    try:
        live(b"", timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


def test_who_shows_no_certificate_is_not_let_in(server: Server, files: Certificates) -> None:
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials(files, None)) as channel:
        assert is_refused(channel)
    assert server.read_log(b"TLS handshakes of gRPC's clients that failed: ")
    assert server.read_log(b"peer did not return a certificate")


def test_who_shows_or_trusts_what_another_authority_has_signed_is_not_let_in(
    server: Server, files: Certificates, others: Certificates
) -> None:
    for trusts, shows in ((files, others), (others, files)):
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials(trusts, shows)) as channel:
            assert is_refused(channel)


def test_clients_without_tls(server: Server, triton: Any) -> None:
    """The first stalls in the middle of its handshake, and holds up no other."""
    address, log_start = ("127.0.0.1", server.grpc_port), len(server.log)
    with socket.create_connection(address, DEADLINE_S) as stalled:
        stalled.sendall(b"\x16\x03\x01\x02\x00")
        with grpc.insecure_channel(f"localhost:{server.grpc_port}") as channel:
            assert is_refused(channel)
        for garbage in (b"GET /v2 HTTP/1.1\r\n\r\n", bytes(1000), os.urandom(100_000)):
            with socket.create_connection(address, DEADLINE_S) as opened, suppress(ConnectionError):
                opened.sendall(garbage)
                while opened.recv(65536):
                    pass  # an alert; then the end, or a reset, since the lane has not read all
        assert triton.is_server_live()
    assert server.read_log(b"TLS handshakes of gRPC's clients that failed: ", start=log_start)


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


@pytest.mark.parametrize("hangs", [False, True], ids=["gone", "on a disk that hangs"])
def test_a_lane_is_replaced_though_the_files_are(
    server: Server, files: Certificates, triton: Any, tmp_path: Path, hangs: bool
) -> None:
    (lane,) = [pid for pid in descendants(server.process.pid) if title(pid) == "shoal grpc"]
    key = tmp_path / "key"
    shutil.move(files.server_key, key)
    if hangs:  # an open of a pipe without a writer does
        os.mkfifo(tmp_path / "pipe")
        os.link(tmp_path / "pipe", files.server_key)
    os.kill(lane, signal.SIGKILL)

    def is_answered() -> bool:
        try:
            result = triton.infer("simple", pair())
        except InferenceServerException as error:
            assert error.status() == "StatusCode.UNAVAILABLE", error
            return False
        return bool(result.as_numpy("OUTPUT0").tolist() == [list(range(0, 32, 2))])

    wait_until(is_answered)
    shutil.move(key, files.server_key)
    if hangs:
        os.close(os.open(tmp_path / "pipe", os.O_RDWR))


def test_a_server_that_ends_waits_for_no_idle_stream(server: Server, files: Certificates) -> None:
    left = threading.Event()
    messages: Any = service_pb2

    def requests() -> Iterator[bytes]:
        yield messages.ModelInferRequest(model_name="nope").SerializeToString()
        left.wait(DEADLINE_S)

    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials(files, files)) as channel:
        stream: Any = channel.stream_stream(STREAM)
        answers = stream(requests())
        next(answers)
        assert server.stop() == 0, server.log.decode()  # not after the hour that a stream at work would have
        with pytest.raises(grpc.RpcError, match="GRPC server is shutting down"):
            next(answers)
        left.set()
