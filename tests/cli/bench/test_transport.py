"""A load's sockets: when answers count as there. The server's end is in the test's own hands."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from shoal.cli.bench.http_exchange import HttpExchange
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
