"""What a slow model, or a slow client, must not take from others: places, turns, threads. One lane of HTTP.

`slow` and `stuck` are held by stopping their workers; sixteen requests of each may be in flight.
"""

import http.client
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from shoal.frontend.grpc.http2.frames import PREFACE
from shoal.frontend.grpc.inbox import SMALL_BYTES
from shoal.frontend.grpc.messages import service
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.raw_client import Client, number_in, numbers
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, samples, serving_to_the_end, signal_worker, title, wait_until
from tests.open_sockets import sockets

MAX_IN_FLIGHT = 16
HELD = ("slow", "stuck")
GRPC_LANES = 3
#: Too slow to be given executions ahead.
EXECUTION_MS = 5
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    for name in (*HELD, "idle"):
        add_model(
            repository,
            name,
            config_text("identity", "A INT32 1", "B INT32 1", count=1, execute_delay_ms=EXECUTION_MS * (name in HELD)),
        )
    flags = [f"--max-in-flight={MAX_IN_FLIGHT}", "--http-process-count=1", f"--grpc-process-count={GRPC_LANES}"]
    with serving_to_the_end(repository, *flags, "--grpc-port=0", "--http-thread-count=1") as running:
        yield running
    assert b"Traceback" not in running.log, running.log.decode()


@contextmanager
def held(server: Server, *models: str) -> Iterator[None]:
    """Meanwhile these models answer nothing."""
    for model in models:
        signal_worker(server, model, signal.SIGSTOP)
    try:
        yield
    finally:
        for model in models:
            signal_worker(server, model, signal.SIGCONT)


def wait_for_queued(server: Server, model: str, count: int) -> None:
    """Return when so many requests are accepted, one of which a stopped worker has."""
    wait_for_pending(server, model, count - 1)


def test_two_slow_models_leave_places_for_an_idle_one_over_http(server: Server) -> None:
    each = 12  # below their own bounds, and together more than one model may have
    clients = {model: [Client(server) for _ in range(each)] for model in HELD}
    with held(server, *HELD), Client(server) as other:
        for model, waiting in clients.items():
            for number, client in enumerate(waiting):
                client.send(numbers(model, number))
            wait_for_queued(server, model, each)
        assert [other.ask(numbers("idle", number)).status for number in range(100)] == [200] * 100
    for waiting in clients.values():
        for number, client in enumerate(waiting):
            with client:
                assert number_in(client.reply()) == number


def test_only_the_model_over_its_own_bound_is_refused(server: Server) -> None:
    clients = [Client(server) for _ in range(MAX_IN_FLIGHT)]
    with held(server, "slow"), Client(server) as other:
        for number, client in enumerate(clients):
            client.send(numbers("slow", number))
        wait_for_queued(server, "slow", MAX_IN_FLIGHT)
        assert other.ask(numbers("slow", 1)).status == 503
        assert number_in(other.ask(numbers("idle", 1))) == 1
    for number, client in enumerate(clients):
        with client:
            assert number_in(client.reply()) == number


def message(model: str, number: int) -> bytes:
    request = service.ModelInferRequest(model_name=model)
    request.inputs.add(name="A", datatype="INT32", shape=[1])
    request.raw_input_contents.append(number.to_bytes(4, "little"))
    return bytes(request.SerializeToString())


def number_of(response: bytes) -> int:
    (raw,) = service.ModelInferResponse.FromString(response).raw_output_contents
    return int.from_bytes(raw, "little")


def test_calls_that_wait_for_a_slow_model_hold_up_no_call_to_another(server: Server) -> None:
    """Those that may not be in flight yet wait in the lane; an idle model's calls, in streams too, pass them by."""
    many = 5 * MAX_IN_FLIGHT
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel, held(server, *HELD):
        infer: Any = channel.unary_unary(INFER)
        waiting = {model: [infer.future(message(model, number)) for number in range(many)] for model in HELD}
        for model in HELD:
            wait_for_queued(server, model, MAX_IN_FLIGHT)
        for number in range(MAX_IN_FLIGHT):
            assert number_of(infer(message("idle", number), timeout=DEADLINE_S)) == number
        stream: Any = channel.stream_stream(STREAM)
        streamed = stream(iter([message("idle", 7)]), timeout=DEADLINE_S)
        (answer,) = [service.ModelStreamInferResponse.FromString(each) for each in streamed]
        assert int.from_bytes(answer.infer_response.raw_output_contents[0], "little") == 7
        for model in HELD:
            signal_worker(server, model, signal.SIGCONT)
        for calls in waiting.values():
            assert [number_of(call.result(DEADLINE_S)) for call in calls] == list(range(many))


def test_compressed_calls_on_the_road_wait_for_their_own_model_alone(server: Server) -> None:
    """Large ones, more to a slow model than the eight that may have a thread."""

    def padded(model: str, number: int) -> bytes:
        rest = service.ModelInferRequest()
        rest.parameters["pad"].string_param = os.urandom(2 * SMALL_BYTES).hex()
        return message(model, number) + bytes(rest.SerializeToString())

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer: Any = channel.unary_unary(INFER)
        gzip = grpc.Compression.Gzip
        with held(server, "slow"):
            waiting = [infer.future(padded("slow", number), compression=gzip) for number in range(12)]
            wait_for_queued(server, "slow", 8)
            assert number_of(infer(padded("idle", 7), timeout=DEADLINE_S, compression=gzip)) == 7
        assert [number_of(call.result(DEADLINE_S)) for call in waiting] == list(range(12))


def test_who_waits_on_the_road_takes_no_thread_from_metrics_and_administration(server: Server) -> None:
    """The road has eight threads for a model's requests: fewer than wait here, for the model or for the rest of a
    body."""
    waiting = [Client(server) for _ in range(12)]
    with held(server, "slow"):
        for number, client in enumerate(waiting):
            client.send(numbers("slow", number, b"TE: trailers"))
        chunked = b"POST /v2/models/idle/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
        unfinished = [Client(server).send(chunked) for _ in range(12)]
        wait_for_queued(server, "slow", 8)
        assert samples(server.metrics_port)
        with Client(server) as other:
            index = other.ask(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert (index.status, index.took_the_road) == (200, True)
            assert other.ask(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n").status == 200
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as opened:
            administrator: Any = opened
            assert len(administrator.get_model_repository_index().models) == 3
    for number, client in enumerate(waiting):
        with client:
            assert number_in(client.reply()) == number
    for client in unfinished:
        client.reset()


def test_requests_on_the_road_wait_for_their_own_model_alone(server: Server) -> None:
    """More requests to two slow models than either may have threads; an idle one's are answered meanwhile."""
    waiting = {model: [Client(server) for _ in range(12)] for model in HELD}
    with held(server, *HELD), Client(server) as other:
        for model, clients in waiting.items():
            for number, client in enumerate(clients):
                client.send(numbers(model, number, b"TE: trailers"))
            wait_for_queued(server, model, 8)
        replies = [other.ask(numbers("idle", number, b"TE: trailers")) for number in range(20)]
        assert [(number_in(each), each.took_the_road) for each in replies] == [(number, True) for number in range(20)]
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as opened:
            asked = triton.InferInput("A", [1], "INT32")
            asked.set_data_from_numpy(np.array([7], np.int32))
            answer: Any = opened.infer("idle", [asked], compression_algorithm="gzip", client_timeout=DEADLINE_S)
            assert answer.as_numpy("B").tolist() == [7]
    for clients in waiting.values():
        for number, client in enumerate(clients):
            with client:
                assert number_in(client.reply()) == number


def test_requests_whose_clients_have_gone_are_not_worked_on(server: Server) -> None:
    """Those that wait for one of the eight threads that a model's requests have; a later request tells that all of them
    do."""
    before, many = samples(server.metrics_port), 20
    waiting, leaving = [Client(server) for _ in range(8)], [Client(server) for _ in range(many)]
    with held(server, "slow"), Client(server) as other:
        for number, client in enumerate(waiting):
            client.send(numbers("slow", number, b"TE: trailers"))
        wait_for_queued(server, "slow", 8)
        for client in leaving:
            client.send(numbers("slow", 1, b"TE: trailers"))
        assert other.ask(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n").took_the_road
        for client in leaving:
            client.reset()
    for number, client in enumerate(waiting):
        with client:
            assert number_in(client.reply()) == number
    with Client(server) as last:
        assert number_in(last.ask(numbers("slow", 3, b"TE: trailers"))) == 3
    after = samples(server.metrics_port)
    slow = 'nv_inference_request_success{model="slow",version="1"}'
    assert after["shoal_requests_abandoned_total"] - before["shoal_requests_abandoned_total"] == many
    assert after[slow] - before[slow] == 8 + 1


def is_asleep(pid: int) -> bool:
    """Whether the process waits for something to happen, neither at work, nor in want of a core, nor stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


def test_connections_that_come_one_by_one_are_spread_over_the_lanes(server: Server) -> None:
    """The kernel wakes the lane that has waited longest, which is another each time."""
    lanes = [pid for pid in server.children if title(pid) == "shoal grpc"]
    assert len(lanes) == GRPC_LANES
    before = {pid: sockets(pid) for pid in lanes}  # an earlier test's may close at any time
    with ExitStack() as stack:
        for _ in range(60):
            wait_until(lambda: all(map(is_asleep, lanes)), lambda: f"a lane of {lanes} does not wait for connections")
            opened = socket.create_connection(("127.0.0.1", server.grpc_port), DEADLINE_S)
            stack.enter_context(opened)
            opened.sendall(PREFACE)
            assert opened.recv(9)  # a lane has accepted it and sends its settings
        counts = [len(sockets(pid) - before[pid]) for pid in lanes]
    assert sum(counts) == 60
    assert min(counts) >= 10, counts


def test_head_is_get_without_a_body_on_lane_and_road(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    for path, status in (
        ("/v2/health/live", 200), ("/v2/health/ready", 200), ("/v2/models/idle/ready", 200), ("/v2/models/idle", 200),
        ("/v2/trace/setting", 200), ("/v2/nowhere", 404), ("/v2/models/idle/infer", 405),
    ):  # fmt: skip
        for fields in ({}, {"TE": "trailers"}):
            told = []
            for method in ("HEAD", "POST" if status == 405 else "GET"):
                body = b"{" if method == "POST" else None
                connection.request(method, path, body, fields)
                response = connection.getresponse()
                told.append((response.status, len(response.read()), int(response.getheader("Content-Length") or 0)))
            (head_status, nothing, head_length), (_, _, length) = told
            assert (head_status, nothing) == (status, 0)
            assert head_length == length or status == 405
    connection.close()
    metrics = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=DEADLINE_S)
    metrics.request("HEAD", "/metrics")
    response = metrics.getresponse()
    assert (response.status, response.read()) == (200, b"")
    metrics.close()
