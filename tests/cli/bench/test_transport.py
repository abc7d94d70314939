"""A load's sockets: when answers count as there. The server's end is in the test's own hands."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from shoal.cli.bench.http_exchange import HttpExchange
from shoal.cli.bench.loads import Load
from shoal.cli.bench.transport import READ_BYTES, SocketTransport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[SocketTransport, list[socket.socket]]]:
    """A transport with two requests under way, and the server's ends of their connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with closing(SocketTransport("127.0.0.1", port, partial(HttpExchange, [b"request"]))) as transport:
            accepted = []
            for slot in (0, 1):
                transport.send(slot)
                accepted.append(listener.accept()[0])
                assert accepted[slot].recv(100) == b"request"
            yield transport, accepted
            for each in accepted:
                each.close()


def answered(transport: SocketTransport) -> list[tuple[int, int]]:
    """The slots that one wait yields, and the times of their answers."""
    return [(slot, transport.arrived_ns) for slot, _ in transport.wait(10)]


def test_answers_were_there_when_the_wait_ended(ends: tuple[SocketTransport, list[socket.socket]]) -> None:
    transport, (first, second) = ends
    for _ in range(2):  # the second time by heads that are known
        before_ns = time.perf_counter_ns()
        for each in (first, second):
            each.sendall(ANSWER % 5 + b"hello")
        (one, one_ns), (other, other_ns) = answered(transport)
        assert {one, other} == {0, 1}
        assert before_ns < one_ns == other_ns < time.perf_counter_ns()
        for slot, each in enumerate((first, second)):
            transport.send(slot)
            assert each.recv(100) == b"request"


def test_a_large_answer_is_there_with_its_last_byte(ends: tuple[SocketTransport, list[socket.socket]]) -> None:
    transport, (first, _) = ends
    size = READ_BYTES + 10_000
    for _ in range(2):  # the second time by larger reads
        first.sendall(ANSWER % size + bytes(size - 1))
        assert answered(transport) == []
        before_ns = time.perf_counter_ns()
        first.sendall(b"!")
        found: list[tuple[int, int]] = []
        while not found:
            found = answered(transport)
        ((slot, arrived_ns),) = found
        assert (slot, arrived_ns > before_ns) == (0, True)
        transport.send(0)
        assert first.recv(100) == b"request"


def listened(requests: list[bytes]) -> tuple[socket.socket, SocketTransport]:
    """A server's listening socket, and a transport to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, SocketTransport("127.0.0.1", listener.getsockname()[1], partial(HttpExchange, requests))


def test_an_answer_without_a_request_ends_its_connection() -> None:
    listener, transport = listened([b"request"])
    with listener, closing(transport):
        transport.send(0)
        with listener.accept()[0] as idle:
            idle.sendall(ANSWER % 2 + b"ok")
            assert [slot for slot, _ in answered(transport)] == [0]
            idle.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            assert answered(transport) == []
        transport.send(0)
        with listener.accept()[0] as fresh:
            fresh.sendall(ANSWER % 2 + b"ok")
            assert list(transport.wait(10)) == [(0, None)]


def test_a_request_that_was_answered_before_it_was_sent_is_sent_before_the_next_one() -> None:
    requests = [b"A" * (16 << 20), b"B" * (16 << 20)]  # more than the kernel takes at once
    listener, transport = listened(requests)
    with listener, closing(transport):
        transport.send(0)
        with listener.accept()[0] as server:
            server.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            found: list[tuple[int, str | None]] = []
            while not found:
                found = list(transport.wait(10))
            assert found == [(0, "status 400")]
            transport.send(0)
            data = bytearray()
            while len(data) < 32 << 20:
                data += server.recv(1 << 20)
                list(transport.wait(0))
            assert data == requests[0] + requests[1]


def answer_all(listener: socket.socket, turn_is_over: threading.Event) -> None:
    """Answer every request of one connection; close it when its turn is over."""
    with listener.accept()[0] as server:
        server.settimeout(0.01)
        while not turn_is_over.is_set():
            try:
                if server.recv(100):
                    server.sendall(ANSWER % 2 + b"ok")
            except TimeoutError:
                pass


def test_a_connection_that_was_closed_between_two_turns_costs_no_error() -> None:
    listener, transport = listened([b"request"])
    with listener, closing(transport):
        load = Load(transport, 1, None, timeout_s=10)
        for _ in range(2):
            turn_is_over = threading.Event()
            server = threading.Thread(target=answer_all, args=(listener, turn_is_over))
            server.start()
            window = load.run(0.01, 3)
            load.drain()
            turn_is_over.set()
            server.join()
            assert window.num_errors == 0
            assert len(window.latencies_ns) >= 3
