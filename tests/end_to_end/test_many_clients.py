"""More clients than there are threads or places: streams over HTTP, and idle connections of gRPC."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.end_to_end.gate import Gate
from tests.end_to_end.raw_client import Client
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end
from tests.end_to_end.window_client import WindowClient

#: More than the road has threads, and than gunicorn's or a model's smallest bounds.
NUM_STREAMS = 300
MAX_CONNECTIONS = 8
STREAM, LIVE = (f"/inference.GRPCInferenceService/{each}" for each in ("ModelStreamInfer", "ServerLive"))
HELD = config_text("python", "A INT32 1", "B INT32 1", "model_transaction_policy { decoupled: true }", count=1)
HELD_PY = python_model("""
    def execute(self, requests):
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), number), daemon=True).start()

    def answer(self, sender, number):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("B", number)]))
        open(GATE).close()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("B", -number)])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """Where each stream waits after its first event."""
    return Gate(tmp_path_factory.mktemp("gate") / "gate")


@pytest.fixture(scope="module")
def server(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "held", HELD, f"GATE = {str(gate.path)!r}\n{HELD_PY}")
    flags = ["--grpc-port=0", "--grpc-process-count=1", f"--grpc-max-connections={MAX_CONNECTIONS}"]
    with serving_to_the_end(repository, *flags) as running:
        yield running


def event(number: int) -> dict[str, object]:
    return {"B": number, "model_name": "held", "model_version": "1"}


def test_hundreds_of_streams_begin_before_any_goes_on(server: Server, gate: Gate) -> None:
    with ExitStack() as stack:
        connections = []
        for number in range(NUM_STREAMS):
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
            stack.callback(connection.close)
            connection.request("POST", "/v2/models/held/generate_stream", json.dumps({"A": number}))
            connections.append(connection)
        responses = [each.getresponse() for each in connections]
        for number, response in enumerate(responses):
            assert json.loads(response.readline().removeprefix(b"data: ")) == event(number)
        with gate.opened():
            for number, response in enumerate(responses):
                assert response.read() == b"\ndata: %b\n\n" % json.dumps(event(-number), separators=(",", ":")).encode()
        # Each connection is kept, and what its client sends next is answered on it.
        for connection in connections[:3]:
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().read() == b""


def test_a_request_behind_a_stream_is_answered_after_it(server: Server, gate: Gate) -> None:
    body = b'{"A":7}'
    head = b"POST /v2/models/held/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Client(server) as client:
        client.send(head + body + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        with gate.opened():
            data = client.rest()
    first, _, second = data.partition(b"0\r\n\r\n")
    assert first.count(b"data: ") == 2
    assert second.startswith(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")


def test_a_body_that_comes_in_pieces_and_is_large(server: Server, gate: Gate) -> None:
    body = b'{"x":"%b","A":7}' % (b"a" * 200_000)
    head = b"POST /v2/models/held/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    with Client(server) as client, gate.opened():
        client.send(head + b"Content-Length: %d\r\n\r\n" % len(body), body[:100_000], body[100_000:])
        data = client.rest()
    assert data.count(b"data: ") == 2
    assert b"gunicorn" not in data


def test_connections_without_calls_make_room_for_other_clients(server: Server) -> None:
    """The first client has an open stream, and keeps its connection; the second is the longest idle."""
    with ExitStack() as stack:
        clients = [stack.enter_context(WindowClient(server.grpc_port, 1 << 16)) for _ in range(MAX_CONNECTIONS)]
        stream = clients[0].call(STREAM)
        clients[0].send(stream, b"")
        late = stack.enter_context(WindowClient(server.grpc_port, 1 << 16))
        live = late.call(LIVE, b"", ends=True)
        assert late.trailers(live)["grpc-status"] == "0"
        clients[0].send(stream, b"", ends=True)
        assert clients[0].trailers(stream)["grpc-status"] == "0"
