"""Requests that are long in arriving: they take no thread, have a deadline, and share the memory for them.

The road has eight threads for requests. A body may take two seconds, and one more for each byte that has come: so one
of which a thousand bytes have come is never late here, and one that stops after three soon is.
"""

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.end_to_end.raw_client import Client, number_in, numbers
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import Server, samples, serving_to_the_end
from tests.end_to_end.window_client import WindowClient

MIB = 1 << 20
NUM_UPLOADS = 300
HEAD = b"POST /v2/models/grid/infer HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "grid", config_text("identity", "A FP32 1 1", "B FP32 1 1"))
    flags = ["--http-process-count=1", "--http-thread-count=1", "--max-upload-mib=16", "--grpc-port=0"]
    with serving_to_the_end(repository, *flags, "--upload-timeout-secs=2", "--min-upload-rate=1") as running:
        yield running
    assert b"Traceback" not in running.log, running.log.decode()


def body(number: int, nbytes: int) -> bytes:
    return numbers("grid", number).partition(b"\r\n\r\n")[2].ljust(nbytes)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def ask_all(server: Server) -> None:
    """Requests of every kind of work on the road, each of which is answered."""
    with Client(server) as client:
        assert number_in(client.ask(numbers("grid", 7, b"TE: trailers"))) == 7
        for path in ("live", "ready"):
            reply = client.ask(f"GET /v2/health/{path} HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n".encode())
            assert (reply.status, reply.took_the_road) == (200, True)
        index = client.ask(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert index.status == 200
    assert samples(server.metrics_port)


def test_slow_uploads_take_no_thread_and_all_finish(server: Server) -> None:
    """Many more than threads: in chunks, with a length that the lane leaves to the road, and small ones that the lane
    begins to receive."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(NUM_UPLOADS)]
        sent = [body(number, 2000) for number in range(NUM_UPLOADS)]
        for number, client in enumerate(clients):
            if number % 3 == 0:
                client.send(CHUNKED + chunk(sent[number][:1000]) + b"3e8\r\n")
            else:
                fields = b"TE: trailers\r\n" if number % 3 == 1 else b""
                client.send(HEAD + b"Content-Length: 2000\r\n" + fields + b"\r\n" + sent[number][:1000])
        ask_all(server)
        for number, client in enumerate(clients):
            client.send(sent[number][1000:] + (b"" if number % 3 else b"\r\n0\r\nX-Sum: 1\r\n\r\n"))
        assert [number_in(client.reply()) for client in clients] == list(range(NUM_UPLOADS))
        assert [number_in(client.ask(numbers("grid", 3))) for client in clients[:4]] == [3] * 4


def test_what_does_not_come_is_refused(server: Server) -> None:
    begun = [
        CHUNKED + b"5\r\nabc",
        HEAD + b"TE: trailers\r\nContent-Length: 99\r\n\r\nabc",
        HEAD + b"Content-Length: 99\r\n\r\nabc",  # which the lane waits for first
    ]
    with ExitStack() as stack:
        of_grpc = stack.enter_context(WindowClient(server.grpc_port, 1 << 16))
        calls = [of_grpc.call(f"/inference.GRPCInferenceService/{rpc}") for rpc in ("ModelInfer", "ModelStreamInfer")]
        for call in calls:
            of_grpc.send(call, b"\0\0\0\0\x09")
        for client in [stack.enter_context(Client(server).send(sent)) for sent in begun]:
            reply = client.reply()
            assert (reply.status, reply.headers["connection"]) == (408, "close")
            assert "3 bytes in 5 s" in json.loads(reply.body)["error"] or "--upload-timeout-secs" in reply.body.decode()
            assert client.finish().socket.recv(1) == b""
        for call in calls:
            ended = of_grpc.trailers(call)
            assert (ended["grpc-status"], "--upload-timeout-secs" in ended["grpc-message"]) == ("14", True)


def test_a_request_larger_than_the_memory_for_all_is_refused(server: Server) -> None:
    for begun in (
        HEAD + b"Content-Length: %d\r\n\r\n" % (17 * MIB),
        CHUNKED + b"%x\r\n" % (17 * MIB) + bytes(17 * MIB),
    ):
        with Client(server).send(begun) as client:
            reply = client.reply()
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            assert "--max-upload-mib" in json.loads(reply.body)["error"]


def test_the_connection_that_holds_most_is_refused_and_not_those_that_come_later(server: Server) -> None:
    with Client(server) as hoarder, Client(server) as other:
        hoarder.send(CHUNKED + b"%x\r\n" % (14 * MIB) + bytes(10 * MIB))
        ask_all(server)
        assert number_in(other.ask(CHUNKED + chunk(body(5, 7 * MIB)) + b"0\r\n\r\n")) == 5
        reply = hoarder.reply()
        assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (503, "1", "close")
        assert "--max-upload-mib" in json.loads(reply.body)["error"]


def test_a_body_that_expands_beyond_the_memory_for_all_is_refused(server: Server) -> None:
    noise = random.Random(1)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    with Client(server) as client:
        packed = gzip.compress(noise.randbytes(MIB // 4) + bytes(20 * MIB))
        reply = client.ask(head % len(packed) + packed)
        assert (reply.status, "--max-upload-mib" in reply.body.decode()) == (503, True), reply.body
        for blanks in (b"", bytes(noise.choices(b" \t\r\n", k=MIB))):
            packed = gzip.compress(body(6, 2000) + blanks)
            assert number_in(client.ask(head % len(packed) + packed)) == 6
        assert 100 * len(packed) > 16 * MIB  # it may have been a hundred times as large
