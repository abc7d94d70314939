"""frontend/grpc/http2/receiving.py: every broken rule has its answer, and what has no meaning is ignored."""

import pytest

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PLAIN_CALL,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STATUS_200,
    TRAILERS,
    WINDOW_UPDATE,
    calling,
    fault_of,
    frame,
    frames_in,
    frames_of,
    number,
    opened,
    setting,
    taken,
)
from tests.frontend.grpc.http2.violations import (
    CONNECTION_WINDOW,
    MAX_FRAME,
    OF_A_STREAM,
    OF_BOTH,
    OF_THE_CONNECTION,
    STREAM_WINDOW,
    Violation,
)

LIMITS = Limits(stream_window=STREAM_WINDOW, connection_window=CONNECTION_WINDOW, max_frame=MAX_FRAME)


def busy() -> Http2Connection:
    """A connection in the state that violations.py describes."""
    connection = opened(LIMITS)
    calling(connection, 1)
    calling(connection, 3, 5, ends=True)
    connection.respond(5, STATUS_200, [b"x"], TRAILERS)
    taken(connection)
    return connection


def test_what_the_server_announces() -> None:
    connection = Http2Connection(LIMITS, 0.0)
    settings = setting(3, 1024) + setting(4, 40_000) + setting(5, 70_000) + setting(6, 16_384)
    assert frames_of(connection) == [(SETTINGS, 0, 0, settings), (WINDOW_UPDATE, 0, 0, number(100_000 - 65_535))]


@pytest.mark.parametrize("violation", OF_THE_CONNECTION, ids=lambda violation: violation.name)
def test_a_broken_rule_of_the_connection_ends_it(violation: Violation) -> None:
    connection = busy()
    assert connection.receive(violation.said, 0.0) == []
    assert fault_of(connection) == violation.told
    assert connection.is_failed
    assert len(connection.streams.open) == 0


@pytest.mark.parametrize("violation", OF_A_STREAM, ids=lambda violation: violation.name)
def test_a_broken_rule_of_a_stream_ends_that(violation: Violation) -> None:
    connection = busy()
    events = connection.receive(violation.said, 0.0)
    assert fault_of(connection) == violation.told
    assert not connection.is_failed
    resets = [event for event in events if isinstance(event, StreamReset)]
    assert [reset.error_code for reset in resets] == [violation.told[1]] * len(resets)
    # The connection serves the next call: its table is still the client's.
    calling(connection, 11, ends=True)


@pytest.mark.parametrize("violation", OF_BOTH, ids=lambda violation: violation.name)
def test_a_broken_rule_is_found_in_single_bytes_too(violation: Violation) -> None:
    said = violation.said
    connection = busy()
    first = max(len(said) - 20_000, 0)
    connection.receive(said[:first], 0.0)
    for at in range(first, len(said)):
        connection.receive(said[at : at + 1], 0.0)
    assert fault_of(connection) == violation.told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (frame(PING, 0, 0, b"12345678"), ("GOAWAY", 1)),
        (frame(HEADERS, 5, 1, PLAIN_CALL), ("GOAWAY", 1)),
        (frame(SETTINGS, 1, 0), ("GOAWAY", 1)),
        (frame(SETTINGS, 0, 0, b"\0"), ("GOAWAY", 6)),
    ],
)
def test_settings_come_first(said: bytes, told: tuple[str, int]) -> None:
    connection = Http2Connection(LIMITS, 0.0)
    assert connection.receive(PREFACE + said, 0.0) == []
    assert fault_of(connection) == told


@pytest.mark.parametrize(
    "said",
    [
        frame(99, 255, 0, b"whatever"),
        frame(16, 0, 0, b"PRIORITY_UPDATE"),
        frame(99, 0, 77, b"x" * MAX_FRAME),
        frame(PRIORITY, 0, 1, b"\0\0\0\1\0"),
        frame(PRIORITY, 0, 77, b"\0\0\0\1\0"),
        frame(WINDOW_UPDATE, 0, 5, number(1)),
        frame(WINDOW_UPDATE, 0, 5, number(0)),
        frame(RST_STREAM, 0, 5, number(8)),
        frame(DATA, 0, 1),
        frame(DATA, 8, 1, b"\0"),
        frame(SETTINGS, 1, 0),
        frame(PING, 1, 0, b"12345678"),
    ],
)
def test_what_means_nothing_is_ignored(said: bytes) -> None:
    for size in (1000, 5):
        connection = busy()
        for at in range(0, len(said), size):
            assert connection.receive(said[at : at + size], 0.0) == []
        assert taken(connection) == (b"", [])
        calling(connection, 11)


@pytest.mark.parametrize(
    "said",
    [frame(HEADERS, 5, 11, PLAIN_CALL)[:20], frame(HEADERS, 1, 11, PLAIN_CALL), frame(PING, 0, 0, b"12345678")[:8]],
)
def test_the_rest_of_a_frame_or_of_a_head_is_missing_since_its_beginning(said: bytes) -> None:
    connection = busy()
    assert not connection.waits_since(1e9)
    connection.receive(frame(DATA, 0, 1, b"1234")[:-2], 5.0)  # data is passed on, not kept until the frame is whole
    assert not connection.waits_since(1e9)
    connection.receive(b"34" + said[:4], 10.0)
    connection.receive(said[4:], 10.0)
    connection.receive(b"", 11.0)
    assert (connection.waits_since(9.9), connection.waits_since(10.0)) == (False, True)


def test_settings_in_force() -> None:
    connection = busy()
    said = frame(SETTINGS, 0, 0, setting(4, 3) + setting(5, 20_000) + setting(99, 5) + setting(4, 30_000))
    assert connection.receive(said, 0.0) == []
    assert frames_of(connection) == [(SETTINGS, 1, 0, b"")]
    connection.respond(3, STATUS_200, [b"x" * 65_000], TRAILERS)
    assert [len(each.payload) for each in frames_of(connection) if each.kind == DATA] == [20_000, 10_000]


def test_a_window_may_be_negative() -> None:
    connection = busy()
    connection.send_headers(3, STATUS_200)
    connection.send_data(3, [b"x" * 60_000])
    assert len(taken(connection)[0]) > 60_000
    connection.send_data(3, [b"y" * 10])
    connection.receive(frame(SETTINGS, 0, 0, setting(4, 0)), 0.0)  # 60 000 below nothing
    connection.receive(frame(WINDOW_UPDATE, 0, 3, number(60_000)), 0.0)
    assert [each.kind for each in frames_of(connection)] == [SETTINGS]
    connection.receive(frame(WINDOW_UPDATE, 0, 3, number(1)), 0.0)
    assert frames_of(connection) == [(DATA, 0, 3, b"y")]
    connection.receive(frame(SETTINGS, 0, 0, setting(4, 100)), 0.0)
    assert frames_of(connection) == [(SETTINGS, 1, 0, b""), (DATA, 0, 3, b"y" * 9)]


def test_a_head_in_many_frames_padded_and_with_priority() -> None:
    for cut in range(1, len(PLAIN_CALL)):
        connection = busy()
        said = frame(HEADERS, 0x28, 7, b"\3" + b"\0\0\0\1\0" + PLAIN_CALL[:cut] + b"pad")
        said += frame(CONTINUATION, 0, 7) + frame(CONTINUATION, 4, 7, PLAIN_CALL[cut:])
        (event,) = connection.receive(said, 0.0)
        assert isinstance(event, RequestStarted)
        assert (event.stream_id, event.headers[":path"], event.end_stream) == (7, "/s/M", False)


def test_the_last_stream_of_all() -> None:
    connection = busy()
    last = (1 << 31) - 1
    assert len(connection.receive(frame(HEADERS, 5, last, PLAIN_CALL), 0.0)) == 1
    connection.respond(last, STATUS_200, [b"x"], TRAILERS)
    # No number is left: the client has to connect anew, and one that does not is told.
    assert connection.receive(frame(HEADERS, 5, last, PLAIN_CALL), 0.0) == []
    assert fault_of(connection) == ("GOAWAY", 5)


def test_the_reserved_bit_means_nothing() -> None:
    connection = busy()
    said = frame(HEADERS, 4, 7, PLAIN_CALL) + frame(DATA, 1, 7, b"x")
    said = said.replace(b"\0\0\0\7", b"\x80\0\0\7")
    assert connection.receive(said, 0.0)[-1] == DataReceived(7, b"x", True)
    increment = number(1 << 31 | 1)
    connection.receive(frame(WINDOW_UPDATE, 0, 7, increment), 0.0)
    assert fault_of(connection) is None


def test_more_streams_than_allowed_are_refused_and_may_be_tried_again() -> None:
    connection = opened(Limits(max_streams=2))
    calling(connection, 1, 3, ends=True)
    for said in (frame(HEADERS, 5, 5, PLAIN_CALL), frame(HEADERS, 4, 7, PLAIN_CALL) + frame(DATA, 1, 7, b"x")):
        assert connection.receive(said, 0.0) == []
        assert fault_of(connection) == ("RST_STREAM", 7)
    connection.respond(1, STATUS_200, [b"x"], TRAILERS)
    calling(connection, 9)


def test_large_heads_of_open_streams_are_bounded_together() -> None:
    connection = opened(LIMITS._replace(max_open_header_bytes=11_000))
    large = PLAIN_CALL + b"\0\1x\x7f\x81\x17" + b"y" * (0x7F + 0x81 - 0x80 + (0x17 << 7))
    for stream_id in (1, 3, 5, 7):
        connection.receive(frame(HEADERS, 4, stream_id, large), 0.0)
    assert list(connection.streams.open) == [1, 3, 5]
    assert fault_of(connection) == ("RST_STREAM", 7)
    calling(connection, 9)  # a small one
    connection.respond(1, STATUS_200, [b"x"], TRAILERS)
    connection.receive(frame(RST_STREAM, 0, 3, number(8)) + frame(HEADERS, 4, 11, large), 0.0)
    assert 11 in connection.streams.open


def test_large_heads_that_came_in_short_blocks_are_bounded_when_their_first_streams_have_ended() -> None:
    """Each of these blocks is known when the second stream begins with it, and refers to 3000 bytes of the table."""
    connection = opened(LIMITS._replace(max_open_header_bytes=11_000))
    kept = PLAIN_CALL + b"\x40\1x\x7f\xb9\x16" + b"y" * (0x7F + 0x39 + (0x16 << 7))
    connection.receive(frame(HEADERS, 5, 1, kept), 0.0)
    connection.respond(1, STATUS_200, [b"x"], TRAILERS)
    block = b""
    for first in (3, 7, 11, 15):
        block = PLAIN_CALL + b"\xbe\0\1n\2%02d" % first
        connection.receive(b"".join([frame(HEADERS, 4, at, block) for at in (first, first + 2)]), 0.0)
        connection.receive(frame(RST_STREAM, 0, first, number(8)), 0.0)
    assert list(connection.streams.open) == [5, 9, 13]
    assert connection.header_nbytes > 3 * 3000
    connection.receive(frame(HEADERS, 4, 19, block), 0.0)
    assert 19 not in connection.streams.open
    shared = PLAIN_CALL + b"\xbe\0\1n\00211"
    connection.receive(b"".join([frame(HEADERS, 4, at, shared) for at in range(21, 99, 2)]), 0.0)
    assert len(connection.streams.open) == 3 + 39, "they have headers that a stream has already"


def test_known_calls_stop_at_the_last_allowed_stream() -> None:
    connection = opened(Limits(max_streams=3))
    said = b"".join(frame(HEADERS, 4, at, PLAIN_CALL) + frame(DATA, 1, at, b"x") for at in range(1, 13, 2))
    events = connection.receive(said, 0.0)
    assert [event.stream_id for event in events if isinstance(event, RequestStarted)] == [1, 3, 5]
    assert [(each.kind, each.stream_id) for each in frames_of(connection)] == [(RST_STREAM, at) for at in (7, 9, 11)]


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 30_000])
@pytest.mark.parametrize("flags", [0, 1, 8, 9])
def test_a_known_call_is_taken_like_an_unknown_one(nbytes: int, flags: int) -> None:
    payload = b"x" * nbytes
    data = frame(DATA, flags, 7, b"\2" + payload + b"\0\0" if flags & 8 else payload)
    heard = []
    for is_known in (False, True):
        connection = opened(Limits(max_streams=10))
        if is_known:
            calling(connection, 1)
            connection.reset(1, 0)
        taken(connection)
        events = connection.receive(frame(HEADERS, 4, 7, PLAIN_CALL) + data, 0.0)
        answers = taken(connection)
        heard.append(([type(e) for e in events], [getattr(e, "end_stream", None) for e in events], answers))
        assert b"".join(e.data for e in events if isinstance(e, DataReceived)) == payload
    assert heard[0] == heard[1]


def test_streams_left_are_remembered_but_not_for_ever() -> None:
    connection = opened(Limits(max_streams=0))
    for stream_id in range(1, 10_001, 2):
        connection.receive(frame(HEADERS, 4, stream_id, PLAIN_CALL), 0.0)
    taken(connection)
    assert len(connection.streams.left) == 4096
    assert connection.receive(frame(DATA, 1, 9999, b"late"), 0.0) == []
    assert not connection.is_failed
    connection.receive(frame(DATA, 1, 1, b"much too late"), 0.0)
    assert fault_of(connection) == ("GOAWAY", 5)


def test_no_answer_is_a_broken_frame() -> None:
    connection = busy()
    for violation in OF_A_STREAM:
        connection.receive(violation.said.replace(b"\0\0\0\7", b"\0\0\0\x09"), 0.0)
    assert frames_in(taken(connection)[0])[-1].kind in (RST_STREAM, GOAWAY)
