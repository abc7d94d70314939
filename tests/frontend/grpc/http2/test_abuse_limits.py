"""frontend/grpc/http2/abuse_limits.py: the known floods, each with its bound and its end."""

from collections.abc import Callable

import pytest

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PLAIN_CALL,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STATUS_200,
    TRAILERS,
    WINDOW_UPDATE,
    calling,
    fault_of,
    frame,
    number,
    opened,
    setting,
    taken,
)

CALM = ("GOAWAY", 11)
#: Small limits, so that a flood is short. Time passes only where a test lets it.
LIMITS = Limits(
    reset_burst=50,
    resets_per_s=10.0,
    nuisance_burst=200,
    nuisances_per_s=100.0,
    max_unsent_answers=100,
    max_ping_strikes=0,
)


def flood(connection: Http2Connection, said: Callable[[int], bytes], now_s: float = 0.0, most: int = 1000) -> int:
    """Send a frame again and again, and read every answer; returns how often until that was too much, or `most`."""
    for count in range(most):
        connection.receive(said(count), now_s)
        told = fault_of(connection)
        if connection.is_failed:
            assert told == CALM
            return count
    return most


def stream_id_of(count: int) -> int:
    return 2 * count + 7


NUISANCES: dict[str, Callable[[int], bytes]] = {
    "PING": lambda count: frame(PING, 0, 0, b"12345678"),
    "answers to no ping": lambda count: frame(PING, 1, 0, b"12345678"),
    "PRIORITY": lambda count: frame(PRIORITY, 0, 1, b"\0\0\0\3\1"),
    "WINDOW_UPDATE": lambda count: frame(WINDOW_UPDATE, 0, 0, number(1)),
    "WINDOW_UPDATE of a stream": lambda count: frame(WINDOW_UPDATE, 0, 1, number(1)),
    "empty DATA": lambda count: frame(DATA, 0, 1),
    "empty DATA, padded": lambda count: frame(DATA, 8, 1, b"\5     "),
    "unknown frames": lambda count: frame(99, 0, 0, b"x"),
    "GOAWAY": lambda count: frame(7, 0, 0, b"\0" * 8),
    "RST_STREAM of closed streams": lambda count: frame(RST_STREAM, 0, 5, number(8)),
    "malformed calls": lambda count: frame(HEADERS, 5, stream_id_of(count), PLAIN_CALL + b"\x83"),
}
#: The ways in which a client ends calls early: by resetting them, and by frames for which the server resets them.
RESETS: dict[str, Callable[[int], bytes]] = {
    "RST_STREAM": lambda stream_id: frame(RST_STREAM, 0, stream_id, number(8)),
    "DATA behind the end": lambda stream_id: frame(DATA, 0, stream_id, b"x"),
    "a window widened by nothing": lambda stream_id: frame(WINDOW_UPDATE, 0, stream_id, number(0)),
    "a window beyond its bound": lambda stream_id: frame(WINDOW_UPDATE, 0, stream_id, number((1 << 31) - 1)),
}


def busy(limits: Limits = LIMITS) -> Http2Connection:
    connection = opened(limits)
    calling(connection, 1, 3, 5)
    connection.reset(5, 8)
    taken(connection)
    return connection


@pytest.mark.parametrize("kind", NUISANCES)
def test_a_flood_of_what_carries_nothing(kind: str) -> None:
    assert flood(busy(), NUISANCES[kind]) in (189, 190)  # a burst, less the SETTINGS of the greeting


def test_settings_weigh_more_as_they_touch_every_stream() -> None:
    assert flood(busy(), lambda count: frame(SETTINGS, 0, 0, setting(4, count))) == 19


def test_a_flood_that_is_slow_enough_is_none() -> None:
    connection = busy()
    for count in range(1000):
        connection.receive(NUISANCES["WINDOW_UPDATE"](count), count * 0.011)
    assert not connection.is_failed


def test_work_done_pays_for_the_windows_that_it_needs() -> None:
    connection = busy()
    connection.receive(frame(WINDOW_UPDATE, 0, 0, number(1 << 20)), 0.0)
    for count in range(1000):
        connection.send_data(1, [b"x"])
        taken(connection)
        connection.receive(frame(WINDOW_UPDATE, 0, 1, number(1)) + frame(WINDOW_UPDATE, 0, 0, number(1)), 0.0)
        assert not connection.is_failed, count


@pytest.mark.parametrize("kind", RESETS)
def test_rapid_reset(kind: str) -> None:
    def call_and_cancel(count: int) -> bytes:
        return frame(HEADERS, 5, stream_id_of(count), PLAIN_CALL) + RESETS[kind](stream_id_of(count))

    assert flood(busy(), call_and_cancel) == 50
    connection = busy()
    for count in range(500):  # ten a second
        connection.receive(call_and_cancel(count), count * 0.11)
        taken(connection)
    assert not connection.is_failed


def test_a_client_may_cancel_as_often_as_it_waits_for_answers() -> None:
    connection = busy()
    for count in range(500):
        first, second = stream_id_of(2 * count), stream_id_of(2 * count + 1)
        calling(connection, first, second, ends=True)
        connection.respond(first, STATUS_200, [b"x"], TRAILERS)
        taken(connection)
        connection.receive(frame(RST_STREAM, 0, second, number(8)), 0.0)
        assert not connection.is_failed, count


def test_more_streams_than_allowed_again_and_again() -> None:
    connection = opened(LIMITS._replace(max_streams=1))
    calling(connection, 1)
    assert flood(connection, lambda count: frame(HEADERS, 5, stream_id_of(count), PLAIN_CALL)) == 190


def test_continuations_without_end() -> None:
    connection = busy()
    connection.receive(frame(HEADERS, 0, 7, PLAIN_CALL), 0.0)
    assert flood(connection, lambda count: frame(CONTINUATION, 0, 7)) == 16
    connection = busy()
    connection.receive(frame(HEADERS, 0, 7, PLAIN_CALL), 0.0)
    assert flood(connection, lambda count: frame(CONTINUATION, 0, 7, b"x" * 5000)) == 3


def test_answers_that_are_not_read() -> None:
    connection = busy(LIMITS._replace(nuisance_burst=1 << 20))
    for count in range(101):
        assert not connection.is_failed, count
        connection.receive(frame(PING, 0, 0, b"12345678"), 0.0)
    assert connection.is_failed
    assert fault_of(connection) == CALM


# --- pings, as gRPC core counts them ---

PINGS = Limits(max_ping_strikes=2, min_recv_ping_interval_without_data_s=300.0)
_PING = frame(PING, 0, 0, b"12345678")


def pinged(connection: Http2Connection, *times_s: float) -> bool:
    for now_s in times_s:
        connection.receive(_PING, now_s)
    return connection.is_failed


def test_pings_too_early_are_strikes() -> None:
    connection = busy(PINGS)
    assert not pinged(connection, 0, 1, 2)
    assert pinged(connection, 3)
    sent = taken(connection)[0]
    assert sent.endswith(b"too_many_pings")  # what gRPC clients look for, to ping less often
    assert fault_of(connection) is None


def test_pings_in_time_are_none() -> None:
    assert not pinged(busy(PINGS), *range(0, 3000, 300))


def test_what_we_send_forgives_pings() -> None:
    connection = busy(PINGS)
    for now_s in range(100):
        connection.send_data(1, [b"x"])
        taken(connection)
        assert not pinged(connection, now_s, now_s)


def test_without_a_call_pings_have_two_hours() -> None:
    times_s = (0, 301, 602, 903)
    assert pinged(opened(PINGS), *times_s)
    assert not pinged(opened(PINGS), 0, 7201, 14_402, 21_603)
    assert not pinged(opened(PINGS._replace(keepalive_permit_without_calls=True)), *times_s)


def test_no_strikes_no_rule() -> None:
    assert not pinged(busy(PINGS._replace(max_ping_strikes=0)), *[0.0] * 100)


def test_so_many_pings_of_ours_in_a_row() -> None:
    connection = busy(PINGS._replace(max_pings_without_data=2))
    assert [connection.ping() for _ in range(4)] == [True, True, False, False]
    connection.send_data(1, [b"x"])
    taken(connection)
    assert [connection.ping() for _ in range(3)] == [True, True, False]
    assert all(busy(PINGS._replace(max_pings_without_data=0)).ping() for _ in range(9))
