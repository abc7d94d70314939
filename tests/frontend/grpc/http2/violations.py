"""What breaks a rule of HTTP/2, the answer that a client gets, and where the RFC says so. For tests and for the fuzzer.

All of these bytes are sent on a connection with three streams: the client is still sending on stream 1, has sent all on
stream 3, and waits for both responses; stream 5 was answered after the client had sent all, and is closed.
"""

from typing import NamedTuple

from tests.frontend.grpc.http2.peer import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PLAIN_CALL,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    number,
    setting,
)

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, COMPRESSION_ERROR, CALM = 1, 3, 5, 6, 9, 11
#: The settings that the server of these tests announces.
STREAM_WINDOW, CONNECTION_WINDOW, MAX_FRAME = 40_000, 100_000, 70_000


class Violation(NamedTuple):
    name: str
    said: bytes
    told: tuple[str, int]


def _field(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _headers(block: bytes) -> bytes:
    return frame(HEADERS, 5, 7, block)


def _connection(name: str, code: int, said: bytes) -> Violation:
    return Violation(name, said, ("GOAWAY", code))


def _stream(name: str, code: int, said: bytes) -> Violation:
    return Violation(name, said, ("RST_STREAM", code))


_FULL = frame(DATA, 0, 1, b"x" * 40_000)
OF_THE_CONNECTION = [
    # 4.1, 4.2
    _connection("frame too large", FRAME_SIZE_ERROR, frame(DATA, 0, 1, b"x" * (MAX_FRAME + 1))),
    _connection("unknown frame too large", FRAME_SIZE_ERROR, frame(99, 0, 1, b"x" * (MAX_FRAME + 1))),
    # 4.3
    _connection("undecodable block", COMPRESSION_ERROR, _headers(b"\xff\xff\xff\xff\xff\xff")),
    _connection("index that is not there", COMPRESSION_ERROR, _headers(b"\xfe")),
    _connection("block cut short", COMPRESSION_ERROR, _headers(PLAIN_CALL[:-1])),
    _connection("table larger than allowed", COMPRESSION_ERROR, _headers(b"\x3f\xff\xff\x03" + PLAIN_CALL)),
    _connection("trailers that cannot be undone", COMPRESSION_ERROR, frame(HEADERS, 5, 1, b"\x80")),
    _connection("block of a refused stream, cut short", COMPRESSION_ERROR, frame(HEADERS, 5, 5, PLAIN_CALL[:-1])),
    # 5.1
    _connection("DATA of an idle stream", PROTOCOL_ERROR, frame(DATA, 0, 9, b"x")),
    _connection("RST_STREAM of an idle stream", PROTOCOL_ERROR, frame(RST_STREAM, 0, 9, number(8))),
    _connection("WINDOW_UPDATE of an idle stream", PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 9, number(1))),
    _connection("DATA of a closed stream", STREAM_CLOSED, frame(DATA, 0, 5, b"x")),
    _connection("HEADERS of a closed stream", STREAM_CLOSED, frame(HEADERS, 5, 5, PLAIN_CALL)),
    # 5.1.1
    _connection("stream of a server", PROTOCOL_ERROR, frame(HEADERS, 5, 8, PLAIN_CALL)),
    _connection("HEADERS of no stream", PROTOCOL_ERROR, frame(HEADERS, 5, 0, PLAIN_CALL)),
    # 6.1, 6.2
    _connection("DATA of no stream", PROTOCOL_ERROR, frame(DATA, 0, 0, b"x")),
    _connection("more padding than data", PROTOCOL_ERROR, frame(DATA, 8, 1, b"\x02x")),
    _connection("padding without its length", FRAME_SIZE_ERROR, frame(DATA, 8, 1) + b"\0"),
    _connection("more padding than block", PROTOCOL_ERROR, frame(HEADERS, 13, 7, b"\x09xx")),
    _connection("HEADERS without room for padding", PROTOCOL_ERROR, frame(HEADERS, 13, 7)),
    _connection("HEADERS without room for priority", PROTOCOL_ERROR, frame(HEADERS, 0x25, 7, b"xxxx")),
    # 6.3
    _connection("PRIORITY of no stream", PROTOCOL_ERROR, frame(PRIORITY, 0, 0, b"\0" * 5)),
    _connection("PRIORITY too short", FRAME_SIZE_ERROR, frame(PRIORITY, 0, 1, b"\0" * 4)),
    # 6.4
    _connection("RST_STREAM of no stream", PROTOCOL_ERROR, frame(RST_STREAM, 0, 0, number(8))),
    _connection("RST_STREAM too short", FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, b"\0\0\0")),
    _connection("RST_STREAM too long", FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, b"\0\0\0\0\0")),
    # 6.5
    _connection("SETTINGS of a stream", PROTOCOL_ERROR, frame(SETTINGS, 0, 1)),
    _connection("SETTINGS of half a setting", FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, b"\0" * 5)),
    _connection("acknowledgement with settings", FRAME_SIZE_ERROR, frame(SETTINGS, 1, 0, setting(4, 1))),
    _connection("push neither on nor off", PROTOCOL_ERROR, frame(SETTINGS, 0, 0, setting(2, 2))),
    _connection("frames too small", PROTOCOL_ERROR, frame(SETTINGS, 0, 0, setting(5, 16_383))),
    _connection("frames too large", PROTOCOL_ERROR, frame(SETTINGS, 0, 0, setting(5, 1 << 24))),
    _connection("initial window too large", FLOW_CONTROL_ERROR, frame(SETTINGS, 0, 0, setting(4, 1 << 31))),
    _connection("too many settings", CALM, frame(SETTINGS, 0, 0, setting(99, 0) * 65)),
    _connection(
        "windows widened beyond 2^31-1 by SETTINGS",
        FLOW_CONTROL_ERROR,
        frame(WINDOW_UPDATE, 0, 1, number(70_000)) + frame(SETTINGS, 0, 0, setting(4, (1 << 31) - 1)),
    ),
    # 6.6, 6.7, 6.8
    _connection("PUSH_PROMISE", PROTOCOL_ERROR, frame(PUSH_PROMISE, 4, 1, number(2) + PLAIN_CALL)),
    _connection("the head of a PUSH_PROMISE", PROTOCOL_ERROR, frame(PUSH_PROMISE, 4, 1, bytes(60_000))[:9]),
    _connection("PING of a stream", PROTOCOL_ERROR, frame(PING, 0, 1, b"12345678")),
    _connection("PING too short", FRAME_SIZE_ERROR, frame(PING, 0, 0, b"1234567")),
    _connection("GOAWAY of a stream", PROTOCOL_ERROR, frame(GOAWAY, 0, 1, b"\0" * 8)),
    _connection("GOAWAY too short", FRAME_SIZE_ERROR, frame(GOAWAY, 0, 0, b"\0" * 7)),
    _connection("GOAWAY that tells a novel", CALM, frame(GOAWAY, 0, 0, b"\0" * 2000)),
    # 6.9
    _connection("WINDOW_UPDATE too short", FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, b"\0\0\1")),
    _connection("WINDOW_UPDATE by nothing", PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 0, number(0))),
    _connection("the window beyond 2^31-1", FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 0, number((1 << 31) - 1))),
    # 6.10
    _connection("CONTINUATION of nothing", PROTOCOL_ERROR, frame(CONTINUATION, 4, 1, PLAIN_CALL)),
    _connection(
        "a frame within a block", PROTOCOL_ERROR, frame(HEADERS, 1, 7, PLAIN_CALL) + frame(PING, 0, 0, b"12345678")
    ),
    _connection(
        "CONTINUATION of another stream",
        PROTOCOL_ERROR,
        frame(HEADERS, 1, 7, b"") + frame(CONTINUATION, 4, 9, PLAIN_CALL),
    ),
    _connection("HEADERS within a block", PROTOCOL_ERROR, frame(HEADERS, 1, 7) + frame(HEADERS, 5, 9, PLAIN_CALL)),
    # 10.5, 10.5.1
    _connection("block too long", CALM, frame(HEADERS, 5, 7, b"x" * 17_000)),
    _connection(
        "block too long with its continuations",
        CALM,
        frame(HEADERS, 1, 7) + frame(CONTINUATION, 0, 7, b"x" * 10_000) * 2,
    ),
    _connection("too many continuations", CALM, frame(HEADERS, 1, 7) + frame(CONTINUATION, 0, 7) * 17),
    _connection(
        "a bomb of a block",  # 4 KB in the table, referred to again and again
        CALM,
        _headers(b"\x40\1x\x7f\xa1\x1e" + b"y" * 4000 + b"\xbe" * 1000),
    ),
]
OF_A_STREAM = [
    # 5.1
    _stream("DATA behind its end", STREAM_CLOSED, frame(DATA, 0, 3, b"x")),
    _stream("HEADERS behind its end", STREAM_CLOSED, frame(HEADERS, 5, 3, b"")),
    # 6.9
    _stream("WINDOW_UPDATE by nothing", PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 1, number(0))),
    _stream("its window beyond 2^31-1", FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 1, number((1 << 31) - 1))),
    _stream("more data than its window", FLOW_CONTROL_ERROR, _FULL + frame(DATA, 0, 1, b"x")),
    _stream("more padding than its window", FLOW_CONTROL_ERROR, _FULL + frame(DATA, 8, 1, b"\0")),
    # 8.1
    _stream("trailers that do not end it", PROTOCOL_ERROR, frame(HEADERS, 4, 1, _field(b"a", b"b"))),
    _stream("pseudo headers in trailers", PROTOCOL_ERROR, frame(HEADERS, 5, 1, PLAIN_CALL)),
    # 8.1.1
    _stream("a length that is none", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"content-length", b"x"))),
    _stream("no body where one was promised", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"content-length", b"1"))),
    _stream(
        "more body than promised",
        PROTOCOL_ERROR,
        frame(HEADERS, 4, 7, PLAIN_CALL + _field(b"content-length", b"1")) + frame(DATA, 0, 7, b"xx"),
    ),
    _stream(
        "less body than promised",
        PROTOCOL_ERROR,
        frame(HEADERS, 4, 7, PLAIN_CALL + _field(b"content-length", b"3")) + frame(DATA, 1, 7, b"xx"),
    ),
    _stream(
        "trailers before all of the body",
        PROTOCOL_ERROR,
        frame(HEADERS, 4, 7, PLAIN_CALL + _field(b"content-length", b"3")) + frame(HEADERS, 5, 7, b""),
    ),
    # 8.2, 8.2.1, 8.2.2
    _stream("a capital in a name", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"A", b"b"))),
    _stream("a space in a name", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a b", b"b"))),
    _stream("a colon in a name", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a:b", b"b"))),
    _stream("an empty name", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"", b"b"))),
    _stream("a line feed in a value", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a", b"b\nc"))),
    _stream("a NUL in a value", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a", b"b\0c"))),
    _stream("a tab before a value", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a", b"\tb"))),
    _stream("a tab behind a value", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"a", b"b\t"))),
    _stream("a field of the connection", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"connection", b"close"))),
    _stream("a transfer coding", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"transfer-encoding", b"chunked"))),
    _stream("te of another kind", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b"te", b"gzip"))),
    # 8.3
    _stream("no path", PROTOCOL_ERROR, _headers(b"\x83\x86")),
    _stream("a blank before a path", PROTOCOL_ERROR, _headers(b"\x83\x86" + _field(b":path", b" /"))),
    _stream("an empty path", PROTOCOL_ERROR, _headers(b"\x83\x86" + _field(b":path", b""))),
    _stream("no method", PROTOCOL_ERROR, _headers(b"\x84\x86")),
    _stream("no scheme", PROTOCOL_ERROR, _headers(b"\x83\x84")),
    _stream("no headers at all", PROTOCOL_ERROR, _headers(b"")),
    _stream("a pseudo header twice", PROTOCOL_ERROR, _headers(PLAIN_CALL + b"\x83")),
    _stream("a pseudo header twice in a row", PROTOCOL_ERROR, _headers(b"\x83" + PLAIN_CALL)),
    _stream("a pseudo header behind a field", PROTOCOL_ERROR, _headers(b"\x83\x84" + _field(b"a", b"b") + b"\x86")),
    _stream("an unknown pseudo header", PROTOCOL_ERROR, _headers(PLAIN_CALL + _field(b":x", b"y"))),
    _stream("a response's pseudo header", PROTOCOL_ERROR, _headers(PLAIN_CALL + b"\x88")),
    _stream("CONNECT", PROTOCOL_ERROR, _headers(_field(b":method", b"CONNECT") + _field(b":authority", b"x"))),
    # 10.5.1
    _stream("a list too large", CALM, _headers(PLAIN_CALL + b"\x87" * 600)),
    _stream("trailers too large", CALM, frame(HEADERS, 5, 1, _field(b"a", b"b" * 9) * 420)),
]
OF_BOTH = OF_THE_CONNECTION + OF_A_STREAM
