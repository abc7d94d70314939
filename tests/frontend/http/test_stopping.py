"""frontend/http/connection.py: how long a connection of a stopping lane waits for requests, on a clock handed in."""

import socket
from collections.abc import Iterator

import pytest

from shoal.frontend.http.connection import WAITING, HttpConnection
from shoal.frontend.lane_loop import HEAD_S, LINGER_S

NOW_S = 100.0


@pytest.fixture
def connection() -> Iterator[HttpConnection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield HttpConnection(ours, NOW_S, NOW_S + HEAD_S)


def stop(connection: HttpConnection) -> float:
    """Have a stopping lane's connection closed soon; how long it has from now on."""
    connection.close_by(NOW_S + LINGER_S)
    return connection.deadline_s - NOW_S


def test_an_idle_connection_is_closed_soon(connection: HttpConnection) -> None:
    assert stop(connection) == LINGER_S


def test_a_request_that_has_begun_keeps_its_time(connection: HttpConnection) -> None:
    connection.buffer = b"POST /v2/models/m/infer HTTP/1.1\r\n"
    assert stop(connection) == HEAD_S


def test_a_request_that_waits_for_its_answer_keeps_its_time(connection: HttpConnection) -> None:
    connection.stage = WAITING
    assert stop(connection) == HEAD_S
