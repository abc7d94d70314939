"""frontend/grpc/http2/connection.py: whole calls, with `h2` as the client."""

import pytest
from h2 import events as h2_events
from h2.settings import SettingCodes

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, PingAcked, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import (
    CALL,
    GOAWAY,
    HEADERS,
    PING,
    PLAIN_CALL,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STATUS_200,
    TRAILERS,
    Client,
    calling,
    frame,
    frames_in,
    frames_of,
    number,
    opened,
    taken,
)

INITIAL_WINDOW, TABLE_SIZE = SettingCodes.INITIAL_WINDOW_SIZE, SettingCodes.HEADER_TABLE_SIZE


def test_a_call_and_its_response() -> None:
    client = Client()
    stream_id = client.call(b"ping")
    assert client.exchange() == [
        RequestStarted(stream_id, dict(CALL), False),
        DataReceived(stream_id, b"ping", True),
    ]
    client.connection.respond(stream_id, STATUS_200, [b"po", memoryview(b"ng")], TRAILERS, token="block")
    client.exchange()
    kinds = [type(event) for event in client.response(stream_id)]
    assert kinds == [
        h2_events.ResponseReceived,
        h2_events.DataReceived,
        h2_events.TrailersReceived,
        h2_events.StreamEnded,
    ]
    assert client.body(stream_id) == b"pong"
    assert client.tokens == ["block"]
    assert len(client.connection.streams.open) == 0


def test_the_same_head_again_is_the_same_mapping() -> None:
    client = Client()
    seen = []
    for _ in range(4):
        client.call(b"x")
        seen += [event.headers for event in client.exchange() if isinstance(event, RequestStarted)]
    assert seen == [dict(CALL)] * 4
    assert seen[2] is seen[3]


def test_a_call_in_pieces_of_any_size_is_the_same_call() -> None:
    said = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, PLAIN_CALL) + frame(0, 1, 1, b"body")
    for size in range(1, len(said) + 1):
        connection = Http2Connection(Limits(), 0.0)
        events = []
        for at in range(0, len(said), size):
            events += connection.receive(said[at : at + size], 0.0)
        assert isinstance(events[0], RequestStarted)
        pieces = [event for event in events if isinstance(event, DataReceived)]
        assert b"".join(piece.data for piece in pieces) == b"body"
        assert [piece.end_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_large_response_waits_for_the_windows() -> None:
    client = Client(settings={INITIAL_WINDOW: 1000})
    stream_id = client.call()
    client.exchange()
    body = bytes(range(256)) * 1000
    client.connection.respond(stream_id, STATUS_200, [memoryview(body)], TRAILERS, token=1)
    client.exchange()
    assert len(client.body(stream_id)) == 1000
    assert client.connection.unsent_nbytes(stream_id) == len(body) - 1000
    assert client.tokens == []
    client.h2.increment_flow_control_window(1 << 20, stream_id)
    client.exchange()
    assert len(client.body(stream_id)) == 65_535  # the connection's
    client.h2.increment_flow_control_window(1 << 20)
    client.exchange()
    assert client.body(stream_id) == body
    assert client.tokens == [1]
    assert isinstance(client.seen[-1], h2_events.StreamEnded)


def test_an_error_without_messages_is_one_block() -> None:
    client = Client()
    stream_id = client.call()
    client.exchange()
    client.connection.send_headers(stream_id, STATUS_200 + TRAILERS, end_stream=True)
    client.exchange()
    kinds = [type(event) for event in client.response(stream_id)]
    assert kinds == [h2_events.ResponseReceived, h2_events.StreamEnded]


def test_a_stream_of_messages() -> None:
    client = Client()
    stream_id = client.call(b"1", ends=False)
    client.exchange()
    client.connection.send_headers(stream_id, STATUS_200)
    for message in (b"a", b"", b"b"):
        client.connection.send_data(stream_id, [message], token=message)
        client.exchange()
    client.h2.send_data(stream_id, b"2", end_stream=True)
    assert client.exchange() == [DataReceived(stream_id, b"2", True)]
    client.connection.send_trailers(stream_id, TRAILERS)
    client.exchange()
    assert client.body(stream_id) == b"ab"
    assert client.tokens == [b"a", b"", b"b"]
    assert len(client.connection.streams.open) == 0


def test_trailers_of_a_client_end_its_side() -> None:
    client = Client()
    stream_id = client.call(b"x", ends=False)
    client.h2.send_headers(stream_id, [("a", "b")], end_stream=True)
    assert client.exchange()[-1] == DataReceived(stream_id, b"", True)


def test_a_client_that_cancels() -> None:
    client = Client(settings={INITIAL_WINDOW: 0})
    stream_id = client.call()
    client.exchange()
    client.connection.respond(stream_id, STATUS_200, [b"x" * 10], TRAILERS, token="block")
    client.exchange()
    client.h2.reset_stream(stream_id, 8)
    assert client.exchange() == [StreamReset(stream_id, 8)]
    assert client.tokens == ["block"]
    # Actions on the ended stream have no effect, and give tokens back.
    client.connection.send_headers(stream_id, STATUS_200)
    client.connection.send_data(stream_id, [b"x"], token="late")
    client.connection.send_trailers(stream_id, TRAILERS)
    client.connection.respond(stream_id, STATUS_200, [b"x"], TRAILERS, token="later")
    client.connection.reset(stream_id, 2)
    client.connection.credit(stream_id, 1 << 30)
    assert taken(client.connection) == (b"", ["late", "later"])
    assert client.connection.unsent_nbytes(stream_id) == 0


def test_a_response_before_the_end_of_the_request() -> None:
    client = Client()
    stream_id = client.call(b"x", ends=False)
    client.exchange()
    client.connection.respond(stream_id, STATUS_200, [b"enough"], TRAILERS)
    late = frame(0, 0, stream_id, b"y" * 100) + frame(0, 1, stream_id, b"z")
    assert client.connection.receive(late, 0.0) == []
    client.exchange()
    assert client.body(stream_id) == b"enough"
    assert client.response(stream_id)[-1].error_code == 0  # RST_STREAM(NO_ERROR)
    assert not client.connection.is_failed


def test_ping() -> None:
    client = Client()
    client.connection.ping()
    assert client.exchange() == [PingAcked()]
    client.h2.ping(b"12345678")
    client.exchange()
    assert client.seen[-1].ping_data == b"12345678"
    assert client.connection.receive(frame(PING, 1, 0, b"whatever"), 0.0) == []


def test_going_away_lets_calls_end_and_refuses_later_ones() -> None:
    client = Client()
    first = client.call()
    client.exchange()
    client.connection.go_away()
    client.connection.go_away()
    assert not client.connection.is_drained
    assert [each.kind for each in frames_of(client.connection)] == [GOAWAY]
    assert client.connection.receive(frame(HEADERS, 4, 3, PLAIN_CALL), 0.0) == []
    assert frames_of(client.connection) == [(RST_STREAM, 0, 3, number(7))]
    assert client.connection.receive(frame(0, 1, 3, b"its body"), 0.0) == []
    client.connection.respond(first, STATUS_200, [b"x"], TRAILERS)
    client.exchange()
    assert client.body(first) == b"x"
    assert client.connection.is_drained


def test_a_client_that_goes_away() -> None:
    client = Client()
    stream_id = client.call()
    client.exchange()
    client.h2.close_connection(error_code=2, additional_data=b"why")
    assert client.exchange() == []
    client.connection.respond(stream_id, STATUS_200, [b"x"], TRAILERS)
    assert len(frames_of(client.connection)) == 3


def test_a_connection_that_failed_gives_every_token_back_and_hears_nothing() -> None:
    connection = opened(settings=b"\0\4\0\0\0\0")
    calling(connection, 1, 3)
    connection.respond(1, STATUS_200, [b"x"], TRAILERS, token="a")
    connection.send_data(3, [b"y"], token="b")
    assert connection.receive(frame(HEADERS, 4, 2, PLAIN_CALL), 0.0) == []
    assert connection.is_failed
    assert connection.is_drained
    sent, tokens = taken(connection)
    assert tokens == ["a", "b"]
    assert frames_in(sent)[-1].kind == GOAWAY
    assert connection.receive(frame(PING, 0, 0, b"12345678"), 0.0) == []
    assert connection.expected is None
    assert taken(connection) == (b"", [])


def test_a_broken_socket_gives_every_token_back() -> None:
    connection = opened(settings=b"\0\4\0\0\0\0")
    calling(connection, 1)
    connection.respond(1, STATUS_200, [b"x"], TRAILERS, token="a")
    connection.close()
    assert taken(connection)[1] == ["a"]
    assert len(connection.streams.open) == 0


def test_a_client_whose_table_is_small_is_told_that_we_use_none() -> None:
    client = Client(settings={TABLE_SIZE: 0})
    for _ in range(2):
        stream_id = client.call()
        client.exchange()
        client.connection.respond(stream_id, STATUS_200, [b"x"], TRAILERS)
        client.exchange()  # the client's hpack raises an error if the table's size was not signalled
        assert client.body(stream_id) == b"x"


def test_a_long_block_takes_continuations() -> None:
    client = Client()
    stream_id = client.call()
    client.exchange()
    long = b"".join(b"\0\1x\x7f\x80\x01" + bytes((65 + at,)) * 255 for at in range(26)) * 6
    assert len(long) > 2 * 16_384
    client.h2.decoder.max_header_list_size = 1 << 20
    client.connection.respond(stream_id, STATUS_200, [b"x"], long)
    sent = taken(client.connection)[0]
    assert [(each.kind, each.flags) for each in frames_in(sent)] == [(1, 4), (0, 0), (1, 1), (9, 0), (9, 4)]
    trailers = next(e for e in client.h2.receive_data(sent) if isinstance(e, h2_events.TrailersReceived))
    assert len(trailers.headers) == 26 * 6


def test_http1_is_answered_in_its_own_words_unless_ours_have_gone_out() -> None:
    connection = Http2Connection(Limits(), 0.0)
    assert connection.receive(b"GET / HTTP/1.1\r\n\r\n", 0.0) == []
    assert connection.is_failed
    pieces, _ = connection.output()
    assert b"".join(pieces).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    late = Http2Connection(Limits(), 0.0)
    late.output()
    late.receive(b"GET / HTTP/1.1\r\n\r\n", 0.0)
    assert [each.kind for each in frames_in(b"".join(late.output()[0]))] == [GOAWAY]


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00", PREFACE[:-1] + b"x", b"PRJ"])
def test_what_is_no_preface_is_refused_at_once(said: bytes) -> None:
    connection = Http2Connection(Limits(), 0.0)
    assert connection.receive(said, 0.0) == []
    assert connection.is_failed
    assert frames_of(connection)[-1] == (GOAWAY, 0, 0, number(0) + number(1) + b"not an HTTP/2 preface")
