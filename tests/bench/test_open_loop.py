"""Open-loop load against a server that answers what it is told: each request once, times from when it was due."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.errors import BenchmarkError
from bench.goodput import judge, percentile
from bench.open_loop import Answer, OpenLoop, _Connection
from bench.workloads import Request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
REQUEST = Request("/v2/models/m/infer", {}, b"{}")


@contextmanager
def answering(*answers: bytes) -> Iterator[OpenLoop]:
    """Each connection is told these, again and again, the first in two pieces."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = 0
            while connection.recv(4096):
                answer = answers[number % len(answers)]
                number += 1
                connection.sendall(answer[:20])
                connection.sendall(answer[20:])

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    loop = OpenLoop(listener.getsockname()[1], REQUEST)
    try:
        yield loop
    finally:
        loop.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_requests_come_at_their_rate_and_each_is_answered() -> None:
    with answering(OK, REFUSED) as loop:
        answers = loop.load(1000, 0.2, seed=1)
        assert 150 < len(answers) < 250
        # A machine that stands still has them all asked at once, each on a connection of its own, whose next answer is
        # the other.
        answers += loop.load(1000, 0.2, seed=2)
        assert {(each.status, each.may_retry) for each in answers} == {(200, False), (503, True)}
        assert all(each.time_s > 0 for each in answers)


@pytest.mark.parametrize(("answer", "per_s"), [(OK, 1000), (REFUSED, 0)])
def test_capacity_counts_what_was_answered_with_200(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, per_s: float
) -> None:
    read, num_read = _Connection.read, 0

    def count(connection: _Connection) -> Answer | None:
        nonlocal num_read
        found = read(connection)
        num_read += found is not None
        return found

    monkeypatch.setattr(_Connection, "read", count)
    monkeypatch.setattr("time.perf_counter", lambda: num_read / 1000)  # a millisecond goes by with each answer
    with answering(answer) as loop:
        assert loop.capacity(2, 0.1) == pytest.approx(per_s)


def test_a_server_that_hangs_up_is_no_measurement() -> None:
    with answering(b"") as loop:
        loop._ask(0.0)
        (connection,) = loop._connections.values()
        connection.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(BenchmarkError, match="closed a connection"):
            loop._finish([])


def test_what_came_too_late_is_no_good_answer_and_slow_refusals_are_told() -> None:
    answers = [Answer(200, False, 0.1), Answer(200, False, 0.3), Answer(503, True, 0.01), Answer(503, False, 0.2)]
    words, is_as_it_should = judge(answers, capacity=1, times=2, seconds=1, deadline_s=0.2)
    assert "100.0% good" in words
    assert "1 late, 1 expired, 1 refused" in words
    assert is_as_it_should
    assert not judge(answers, capacity=2, times=2, seconds=1, deadline_s=0.2)[1]
    assert not judge([*answers, Answer(503, True, 0.2)], capacity=1, times=2, seconds=1, deadline_s=0.2)[1]


def test_percentiles() -> None:
    assert percentile([], 99) == 0
    assert percentile([0.002], 50) == 2
    assert percentile([0.001, 0.003], 50) == pytest.approx(2)
