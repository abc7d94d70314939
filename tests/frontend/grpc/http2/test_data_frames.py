"""frontend/grpc/http2/data_frames.py: data passed on as it comes or received directly, and windows given back."""

import pytest

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, StreamReset
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    DATA,
    HEADERS,
    PING,
    PLAIN_CALL,
    RST_STREAM,
    STATUS_200,
    TRAILERS,
    WINDOW_UPDATE,
    calling,
    frame,
    frames_of,
    number,
    opened,
    taken,
)

LIMITS = Limits(stream_window=100_000, connection_window=200_000)


def begun(flags: int = 1, nbytes: int = 50_000, come: int = 1000) -> Http2Connection:
    """A connection of whose stream 1 a DATA frame has begun: `come` of its `nbytes` bytes have come."""
    connection = opened(LIMITS)
    calling(connection, 1)
    events = connection.receive(frame(DATA, flags, 1, b"x" * nbytes)[: 9 + come], 0.0)
    assert events == ([DataReceived(1, b"x" * come, False)] if come else [])
    return connection


def test_data_past_the_parser() -> None:
    connection = begun()
    assert (connection.expected or ())[:2] == (1, 49_000)
    assert connection.received_directly(40_000) == []
    assert (connection.expected or ())[:2] == (1, 9000)
    assert connection.received_directly(9000) == [DataReceived(1, b"", True)]
    assert connection.expected is None
    calling(connection, 3)


def test_data_past_the_parser_that_is_not_the_last() -> None:
    connection = begun(flags=0)
    assert connection.received_directly(49_000) == []
    assert connection.expected == (1, 0, 50_000, 1)
    assert connection.receive(frame(DATA, 1, 1, b"y"), 0.0) == [DataReceived(1, b"y", True)]


def test_whole_frames_let_others_like_them_be_expected_until_something_else_begins() -> None:
    connection = opened(LIMITS)
    calling(connection, 1, 3)
    connection.receive(frame(DATA, 0, 1, b"x" * 20_000) * 2, 0.0)
    assert connection.expected == (1, 0, 20_000, 3)
    assert connection.received_directly(30_000, 2) == []
    assert connection.expected == (1, 10_000, 20_000, 1)
    connection.receive(b"x" * 10_000 + frame(77, 0, 0, b"unknown")[:10], 0.0)
    assert connection.expected is None
    connection.receive(b"nknown" + frame(DATA, 0, 1, b"x" * 9)[:8], 0.0)
    assert connection.expected is None
    connection.receive(b"\x01" + b"x" * 9, 0.0)
    assert connection.expected == (1, 0, 9, (100_000 - 80_009) // 9)
    connection.receive(frame(HEADERS, 5, 1, TRAILERS), 0.0)
    assert connection.expected is None  # it has ended


def test_data_may_change_between_both_ways() -> None:
    connection = begun()
    connection.received_directly(10_000)
    assert connection.receive(b"x" * 10_000, 0.0) == [DataReceived(1, b"x" * 10_000, False)]
    assert (connection.expected or ())[:2] == (1, 29_000)
    events = connection.receive(b"x" * 29_000 + frame(PING, 0, 0, b"12345678"), 0.0)
    assert events == [DataReceived(1, b"x" * 29_000, True)]
    assert frames_of(connection) == [(PING, 1, 0, b"12345678")]


def test_a_head_alone_begins_it() -> None:
    assert (begun(come=0).expected or ())[:2] == (1, 50_000)


def test_padding_comes_by_the_parser() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    said = frame(DATA, 9, 1, b"\x03" + b"x" * 10 + b"pad")
    connection.receive(said[:12], 0.0)
    assert (connection.expected or ())[:2] == (1, 8)
    assert connection.received_directly(8) == [DataReceived(1, b"", True)]
    assert connection.expected is None
    assert connection.receive(b"pad" + frame(PING, 0, 0, b"12345678"), 0.0) == []
    assert frames_of(connection) == [(PING, 1, 0, b"12345678")]


@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.parametrize("how", ["respond", "reset", "cancel"])
def test_a_stream_that_ends_amid_its_data(how: str, flags: int) -> None:
    connection = begun(flags)
    if how == "respond":
        connection.respond(1, STATUS_200, [b"x"], TRAILERS)
    elif how == "reset":
        connection.reset(1, 8)
    else:
        connection.close()
    assert connection.expected is None
    assert connection.receive(b"x" * 49_000, 0.0) == []
    assert connection.receive(frame(PING, 0, 0, b"12345678"), 0.0) == []
    assert not connection.is_failed
    # A stream whose client has sent all is forgotten; on others more may come.
    assert (1 in connection.streams.left) == (flags == 0 and how != "cancel")


def test_a_small_piece_is_bytes_and_a_large_one_a_view_of_what_came() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    small, large = connection.receive(frame(DATA, 0, 1, b"x" * 4096) + frame(DATA, 0, 1, b"y" * 4097), 0.0)
    assert isinstance(small, DataReceived)
    assert isinstance(large, DataReceived)
    assert isinstance(small.data, bytes)
    assert isinstance(large.data, memoryview)


# --- windows ---


def test_the_connections_window_is_given_back_at_half() -> None:
    connection = opened(LIMITS)
    calling(connection, 1, 3, 5)
    connection.receive(frame(DATA, 0, 1, b"x" * 100_000), 0.0)
    assert frames_of(connection) == []
    connection.receive(frame(DATA, 0, 3, b"x"), 0.0)
    assert frames_of(connection) == [(WINDOW_UPDATE, 0, 0, number(100_001))]


def test_the_connections_window_is_not_given_back_while_data_is_kept() -> None:
    connection = opened(LIMITS)
    calling(connection, 1, 3, 5)

    def credited() -> list[bytes]:
        return [each.payload for each in frames_of(connection) if each.kind == WINDOW_UPDATE]

    for stream_id, nbytes, given in ((1, 90_000, []), (3, 60_000, [number(60_000)]), (5, 50_000, [])):
        connection.receive(frame(DATA, 0, stream_id, b"x" * nbytes), 0.0)
        connection.keep_received(nbytes)
        assert credited() == given
    # Of 260,000 bytes 200,000 have come, and all are kept. What is consumed of them is given back beyond the half.
    connection.keep_received(-60_000)
    assert credited() == []
    connection.keep_received(-40_000)
    assert credited() == [number(40_000)]
    calling(connection, 7)
    assert connection.receive(frame(DATA, 0, 7, b"x" * 100_000), 0.0) == [DataReceived(7, b"x" * 100_000, False)]
    assert credited() == [number(100_000)]  # which is consumed, since nothing else was said
    connection.keep_received(100_000)
    connection.receive(frame(DATA, 0, 1, b"x" * 5000) + frame(DATA, 0, 3, b"x" * 95_000), 0.0)
    assert credited() == []
    connection.receive(frame(DATA, 0, 5, b"x"), 0.0)
    assert connection.is_failed


def test_a_streams_window_is_given_back_as_its_data_is_consumed() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    connection.receive(frame(DATA, 0, 1, b"x" * 60_000), 0.0)
    connection.credit(1, 49_999)
    assert frames_of(connection) == []
    connection.credit(1, 1)
    assert frames_of(connection) == [(WINDOW_UPDATE, 0, 1, number(50_000))]
    connection.receive(frame(DATA, 0, 1, b"x" * 90_000), 0.0)
    assert not [each for each in frames_of(connection) if each.kind == RST_STREAM]
    connection.receive(frame(DATA, 0, 1, b"x"), 0.0)
    assert frames_of(connection) == [(RST_STREAM, 0, 1, number(3))]


def test_a_stream_that_has_ended_needs_no_window() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    connection.receive(frame(DATA, 1, 1, b"x" * 60_000), 0.0)
    connection.credit(1, 60_000)
    assert frames_of(connection) == []


def test_padding_is_given_back_by_itself() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    for _ in range(1000):
        connection.receive(frame(DATA, 8, 1, b"\xff" + b"x" + b"\0" * 255), 0.0)
        connection.credit(1, 1)
    assert not connection.is_failed
    given = [int.from_bytes(each.payload, "big") for each in frames_of(connection) if each.stream_id == 1]
    assert sum(given) in range(200_000, 257_001)


def test_dropped_data_is_given_back_too() -> None:
    connection = begun(flags=0, nbytes=90_000, come=0)
    connection.reset(1, 8)
    taken(connection)
    connection.receive(b"x" * 90_000 + frame(DATA, 0, 1, b"x" * 90_000), 0.0)
    assert frames_of(connection) == [(WINDOW_UPDATE, 0, 0, number(180_000))]


def test_more_than_the_connections_window() -> None:
    connection = opened(Limits(stream_window=1 << 20, connection_window=70_000))
    calling(connection, 1)
    connection.receive(frame(DATA, 0, 1, b"x" * 70_000), 0.0)
    assert not connection.is_failed
    connection = opened(Limits(stream_window=1 << 20, connection_window=70_000))
    calling(connection, 1)
    connection.receive(frame(DATA, 0, 1, b"x" * 70_001), 0.0)
    assert frames_of(connection)[-1].payload[4:8] == number(3)


def heads(length: bytes = b"") -> bytes:
    """A call's head, with a content-length where there is one."""
    return PLAIN_CALL + (b"\0\x0econtent-length" + bytes((len(length),)) + length if length else b"")


def test_equal_frames_that_came_together_are_one_piece() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    pieces = [bytes((letter,)) * 5000 for letter in b"abc"]
    data = b"".join(frame(DATA, 0, 1, piece) for piece in pieces)
    events = connection.receive(data + frame(DATA, 0, 1, b"d" * 4999) + frame(DATA, 1, 1, b"e" * 5000), 0.0)
    assert events == [
        DataReceived(1, b"".join(pieces), False),
        DataReceived(1, b"d" * 4999, False),
        DataReceived(1, b"e" * 5000, True),
    ]


def test_a_frame_that_has_not_come_whole_is_none_of_them() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    data = frame(DATA, 0, 1, b"x" * 5000) * 3
    events = connection.receive(data[:-1], 0.0)
    assert events == [DataReceived(1, b"x" * 10_000, False), DataReceived(1, b"x" * 4999, False)]
    assert (connection.expected or ())[:2] == (1, 1)


def test_equal_frames_of_another_stream_are_none_of_them() -> None:
    connection = opened(LIMITS)
    calling(connection, 1, 3)
    events = connection.receive(frame(DATA, 0, 1, b"x" * 5000) + frame(DATA, 0, 3, b"x" * 5000), 0.0)
    assert events == [DataReceived(1, b"x" * 5000, False), DataReceived(3, b"x" * 5000, False)]


def test_equal_frames_beyond_the_streams_window() -> None:
    connection = opened(LIMITS)
    calling(connection, 1)
    events = connection.receive(frame(DATA, 0, 1, b"x" * 15_000) * 7, 0.0)
    assert events == [DataReceived(1, b"x" * 90_000, False), StreamReset(1, 3)]
    assert frames_of(connection)[-1] == (RST_STREAM, 0, 1, number(3))


def test_equal_frames_beyond_what_was_promised() -> None:
    connection = opened(LIMITS)
    connection.receive(frame(HEADERS, 4, 1, heads(b"12000")), 0.0)
    events = connection.receive(frame(DATA, 0, 1, b"x" * 5000) * 3, 0.0)
    assert events == [DataReceived(1, b"x" * 10_000, False), StreamReset(1, 1)]


def test_as_much_as_was_promised() -> None:
    connection = opened(LIMITS)
    connection.receive(frame(HEADERS, 4, 1, heads(b"11000")), 0.0)
    data = frame(DATA, 0, 1, b"x" * 5000) * 2
    assert connection.receive(data + frame(DATA, 1, 1, b"y" * 1000), 0.0) == [
        DataReceived(1, b"x" * 10_000, False),
        DataReceived(1, b"y" * 1000, True),
    ]


def test_less_than_was_promised() -> None:
    connection = opened(LIMITS)
    connection.receive(frame(HEADERS, 4, 1, heads(b"11000")), 0.0)
    assert connection.receive(frame(DATA, 1, 1, b"x" * 5000), 0.0) == [StreamReset(1, 1)]
