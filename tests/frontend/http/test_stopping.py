"""frontend/http/http_lane.py: how long a lane that stops waits for requests, on a clock that is handed in."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.frontend.http.connection import WAITING, HttpConnection
from shoal.frontend.http.http_lane import HttpLane
from shoal.frontend.lane_loop import HEAD_S, LINGER_S

NOW_S = 100.0


@pytest.fixture
def connection() -> Iterator[HttpConnection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield HttpConnection(ours, NOW_S, NOW_S + HEAD_S)


def stop(connection: HttpConnection) -> float:
    """Begin to stop a lane with this connection; how long that is left to it from now on."""
    lane: Any = HttpLane.__new__(HttpLane)
    lane.now_s, lane._connections = NOW_S, {connection.fd: connection}
    lane._outgoing = SimpleNamespace(idle_s=75.0)
    lane._begin_to_stop()
    assert lane._outgoing.idle_s == LINGER_S
    return connection.deadline_s - NOW_S


def test_an_idle_connection_is_closed_soon(connection: HttpConnection) -> None:
    assert stop(connection) == LINGER_S


def test_a_request_that_has_begun_keeps_its_time(connection: HttpConnection) -> None:
    connection.buffer = b"POST /v2/models/m/infer HTTP/1.1\r\n"
    assert stop(connection) == HEAD_S


def test_a_request_that_waits_for_its_answer_keeps_its_time(connection: HttpConnection) -> None:
    connection.stage = WAITING
    assert stop(connection) == HEAD_S
