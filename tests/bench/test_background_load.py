"""bench/background_load.py: crowds and bodies do what they promise, against a server of a few lines, or say so."""

import socket
import socketserver
import threading
import time
from contextlib import AbstractContextManager
from functools import partial

import pytest

from bench.background_load import QuietConnections, RepeatedRequest, content_length, raw
from bench.errors import BenchmarkError
from bench.workloads import Request
from tests.listening import listening

PING = b"POST /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong"


class Server(socketserver.ThreadingTCPServer):
    """Answers what ends with `body`, notes what came, and leaves the connection to the client unless told not to."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: bytes, closes: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.closes = closes
        self.lock = threading.Condition()
        self.came: list[bytes] = []
        self.num_sent = 0  # answers that the kernel took as a whole

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class Handler(socketserver.BaseRequestHandler):
    """One connection."""

    request: socket.socket

    def handle(self) -> None:
        """Until the client closes, in whatever way."""
        server = self.server
        assert isinstance(server, Server)
        try:
            while data := self.request.recv(65536):
                with server.lock:
                    server.came.append(data)
                    server.lock.notify_all()
                if data.endswith(b"body"):
                    self.request.sendall(server.answer)
                    server.num_sent += 1
                    if server.closes:
                        return
        except OSError:
            return


def serving(answer: bytes = OK, *, closes: bool = False) -> AbstractContextManager[Server]:
    """The server, in a thread."""
    return listening(Server(answer, closes))


def _has_come(server: Server, number: int) -> bool:
    return len(server.came) >= number


def _await_closed(crowd: QuietConnections, number: int) -> None:
    end_s = time.monotonic() + 10
    while crowd.num_closed < number:
        assert time.monotonic() < end_s


def test_a_request_is_written_as_http_has_it() -> None:
    assert raw(Request("/ping", {"A": "b"}, b"body")) == PING


@pytest.mark.parametrize(("more", "nbytes"), [("content-Length: 12\r\nA: 3", 12), ("X-Content-Length: 12", None)])
def test_the_length_of_an_answers_body_is_read(more: str, nbytes: int | None) -> None:
    assert content_length(f"HTTP/1.1 200 OK\r\nServer: x\r\n{more}".encode()) == nbytes


def test_idle_connections_are_answered_and_stay() -> None:
    with serving() as server, QuietConnections(server.port, 3, PING, stays=True) as crowd:
        pass
    assert (server.came, crowd.num_closed) == ([PING] * 3, 0)


def test_idle_connections_that_are_refused_or_closed_are_told() -> None:
    for answer, closes in ((OK.replace(b"200 OK", b"503 No"), False), (OK, True)):
        with (
            serving(answer, closes=closes) as server,
            pytest.raises(BenchmarkError, match="of 3 idle connections"),
            QuietConnections(server.port, 3, PING, stays=True) as crowd,
        ):
            _await_closed(crowd, 3 * closes)


def test_a_stalled_crowd_sends_its_half_and_no_more() -> None:
    with serving() as server, QuietConnections(server.port, 3, PING[:20]), server.lock:
        assert server.lock.wait_for(partial(_has_come, server, 3), 10)
    assert server.came == [PING[:20]] * 3


def test_slow_readers_are_waited_for_and_read_little() -> None:
    answer = OK + bytes(64 << 20)  # more than the kernel takes off a server's hands
    with serving(answer) as server, QuietConnections(server.port, 2, PING, sips=True) as crowd:
        assert (server.came, server.num_sent, crowd.num_closed) == ([PING] * 2, 0, 0)


def test_a_crowd_that_cannot_come_is_told() -> None:
    with socket.socket() as deaf:  # and nobody else gets the port meanwhile
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        with pytest.raises(BenchmarkError, match="the crowd could not be made"), QuietConnections(port, 3, PING):
            pass


def test_bodies_are_sent_again_and_again_and_checked() -> None:
    request = Request("/ping", {}, b"body")
    with serving() as server, RepeatedRequest(server.port, request, b"pong") as bodies, server.lock:
        assert server.lock.wait_for(partial(_has_come, server, 6), 10)  # head and body, three times
    assert bodies.num_answered >= 3


@pytest.mark.parametrize("answer", [OK.replace(b"200 OK", b"503 No"), OK.replace(b"pong", b"ping")])
def test_a_body_that_is_answered_wrongly_is_told(answer: bytes) -> None:
    with (
        serving(answer) as server,
        pytest.raises(BenchmarkError, match="/ping was answered wrongly, status"),
        RepeatedRequest(server.port, Request("/ping", {}, b"body"), b"pong"),
    ):
        raise AssertionError("it began")
