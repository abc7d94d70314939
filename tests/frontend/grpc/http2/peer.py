"""The other end for tests of HTTP/2: frames written by hand, and the `h2` package as a client without sockets."""

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import Event
from shoal.frontend.grpc.http2.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/M"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
#: Every field as a literal that enters no table.
PLAIN_CALL = b"".join(
    b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in CALL
)
#: ":status 200", and "x: y" as trailers.
STATUS_200, TRAILERS = b"\x88", b"\0\1x\1y"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame, as drawn in RFC 9113, 4.1."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def number(value: int) -> bytes:
    """A number of four bytes: an error code, or an increment."""
    return struct.pack(">I", value)


def setting(key: int, value: int) -> bytes:
    return struct.pack(">HI", key, value)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames_in(data: bytes) -> list[Frame]:
    """The frames that a server has sent; they must be whole."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + length
        found.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def taken(connection: Http2Connection) -> tuple[bytes, list[Any]]:
    """All output of the connection, and the tokens that come out with it."""
    sent, tokens = bytearray(), []
    while connection.has_output:
        pieces, over = connection.output()
        sent += b"".join(pieces)
        tokens += over
    return bytes(sent), tokens


def scatter(data: bytes, buffers: list[memoryview]) -> int:
    """Spread bytes over buffers, as recvmsg does; returns how many it took."""
    nbytes = 0
    for buffer in buffers:
        piece = data[nbytes : nbytes + len(buffer)]
        buffer[: len(piece)] = piece
        nbytes += len(piece)
    return nbytes


def frames_of(connection: Http2Connection) -> list[Frame]:
    return frames_in(taken(connection)[0])


def opened(limits: Limits | None = None, settings: bytes = b"") -> Http2Connection:
    """A connection whose greetings have been exchanged."""
    connection = Http2Connection(limits or Limits(), 0.0)
    assert connection.receive(PREFACE + frame(SETTINGS, 0, 0, settings), 0.0) == []
    greeting = frames_of(connection)
    assert [(each.kind, each.flags) for each in greeting if each.kind != WINDOW_UPDATE] == [
        (SETTINGS, 0),
        (SETTINGS, 1),
    ]
    return connection


def calling(connection: Http2Connection, *stream_ids: int, ends: bool = False) -> None:
    """Open these streams."""
    for stream_id in stream_ids:
        events = connection.receive(frame(HEADERS, 5 if ends else 4, stream_id, PLAIN_CALL), 0.0)
        assert len(events) == 1


def fault_of(connection: Http2Connection) -> tuple[str, int] | None:
    """The frame that answers a client's fault, GOAWAY or RST_STREAM, and its error code; None without such a frame."""
    frames = frames_of(connection)
    for each in frames:
        if each.kind == GOAWAY:
            assert each is frames[-1]
            assert re.fullmatch(rb"[\w ,.'/()^-]+", each.payload[8:]), "a sentence, which quotes and addresses nothing"
            return "GOAWAY", int.from_bytes(each.payload[4:8], "big")
    resets = [int.from_bytes(each.payload, "big") for each in frames if each.kind == RST_STREAM]
    return ("RST_STREAM", resets[-1]) if resets else None


class Client:
    """A client of the package `h2`, connected to a connection of ours."""

    def __init__(self, limits: Limits | None = None, settings: dict[SettingCodes, int] | None = None) -> None:
        self.connection = Http2Connection(limits or Limits(), 0.0)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        if settings:
            self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.h2.initiate_connection()
        self.seen: list[Any] = []
        self.tokens: list[Any] = []
        self.exchange()

    def call(self, body: bytes = b"", headers: Sequence[tuple[str, str]] = CALL, *, ends: bool = True) -> int:
        """Begin a call; `exchange` sends it."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, list(headers))
        if body or ends:
            self.h2.send_data(stream_id, body, end_stream=ends)
        return stream_id

    def exchange(self) -> list[Event]:
        """Exchange output until there is none; returns the server's events. The client's events go to `seen`."""
        events: list[Event] = []
        while True:
            to_server = self.h2.data_to_send()
            if to_server:
                events += self.connection.receive(to_server, 0.0)
            to_client, tokens = taken(self.connection)
            self.tokens += tokens
            if to_client:
                self.seen += self.h2.receive_data(to_client)
            if not to_server and not to_client:
                return events

    def response(self, stream_id: int) -> list[Any]:
        """The client's events of a stream."""
        return [event for event in self.seen if getattr(event, "stream_id", None) == stream_id]

    def body(self, stream_id: int) -> bytes:
        return b"".join(event.data for event in self.response(stream_id) if hasattr(event, "data"))
