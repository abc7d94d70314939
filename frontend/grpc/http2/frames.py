"""HTTP/2's frames: the numbers that stand in them, and the making of those frames that the server sends. Pure.

0       3      4       5             9
+-------+------+-------+-------------+---------…
| length| type | flags | R, stream   | payload            (RFC 9113, 4.1; all big endian)
+-------+------+-------+-------------+---------…
"""

import struct
from typing import Final, NamedTuple

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

#: Flags. ACK and END_STREAM are one bit, of different frames.
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20

#: Error codes (RFC 9113, 7).
(
    NO_ERROR,
    PROTOCOL_ERROR,
    INTERNAL_ERROR,
    FLOW_CONTROL_ERROR,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    FRAME_SIZE_ERROR,
    REFUSED_STREAM,
    CANCEL,
    COMPRESSION_ERROR,
    CONNECT_ERROR,
    ENHANCE_YOUR_CALM,
    INADEQUATE_SECURITY,
    HTTP_1_1_REQUIRED,
) = range(14)

#: Settings (RFC 9113, 6.5.2).
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

#: The connection preface, which a client sends first (RFC 9113, 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: The values that hold before a SETTINGS frame has come, and the bounds of the values in such a frame.
DEFAULT_WINDOW, DEFAULT_MAX_FRAME, DEFAULT_HEADER_TABLE = 65_535, 16_384, 4_096
MAX_WINDOW, MAX_MAX_FRAME = (1 << 31) - 1, (1 << 24) - 1
MAX_STREAM_ID = (1 << 31) - 1


class BrokenError(Exception):
    """The client broke a rule of the connection, which ends with GOAWAY of this code."""

    def __init__(self, error_code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.error_code = error_code


HEAD_BYTES: Final = 9
#: Length and type in one word, flags, stream.
_HEAD = struct.Struct(">IBI")
unpack_head = _HEAD.unpack_from
pack_head = _HEAD.pack
_WORD = struct.Struct(">I")
_TWO_WORDS = struct.Struct(">II")
_SETTING = struct.Struct(">HI")


def word_of(payload: bytes) -> int:
    """The 31-bit number in the first four bytes of a payload."""
    number: int = _WORD.unpack_from(payload)[0]
    return number


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE by `increment` bytes; stream 0 is the connection."""
    return pack_head(4 << 8 | WINDOW_UPDATE, 0, stream_id) + _WORD.pack(increment)


def rst_stream(stream_id: int, error_code: int) -> bytes:
    """An RST_STREAM, which ends a stream."""
    return pack_head(4 << 8 | RST_STREAM, 0, stream_id) + _WORD.pack(error_code)


def go_away(last_stream_id: int, error_code: int, debug: bytes = b"") -> bytes:
    """A GOAWAY: no stream after `last_stream_id` was or will be handled."""
    return pack_head((8 + len(debug)) << 8 | GOAWAY, 0, 0) + _TWO_WORDS.pack(last_stream_id, error_code) + debug


def ping(payload: bytes, flags: int = 0) -> bytes:
    """A PING with eight bytes, or its answer with ACK."""
    return pack_head(8 << 8 | PING, flags, 0) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame; `values` are by the settings' numbers."""
    return pack_head(len(values) * 6 << 8 | SETTINGS, 0, 0) + b"".join(_SETTING.pack(*item) for item in values.items())


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Number and value of each setting in a SETTINGS frame, in the frame's order."""
    return list(_SETTING.iter_unpack(payload))


SETTINGS_ACK = pack_head(SETTINGS, ACK, 0)


def headers(stream_id: int, block: bytes, flags: int, max_frame: int) -> bytes:
    """HEADERS with as many CONTINUATIONs as the peer's MAX_FRAME_SIZE requires; `flags`: END_STREAM or 0."""
    if len(block) <= max_frame:
        return pack_head(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [block[at : at + max_frame] for at in range(0, len(block), max_frame)]
    framed = [pack_head(max_frame << 8 | HEADERS, flags, stream_id), parts[0]]
    for part in parts[1:-1]:
        framed += (pack_head(len(part) << 8 | CONTINUATION, 0, stream_id), part)
    framed += (pack_head(len(parts[-1]) << 8 | CONTINUATION, END_HEADERS, stream_id), parts[-1])
    return b"".join(framed)


def unpadded(payload: bytes, flags: int) -> bytes:
    """The header block in a HEADERS frame, without padding and priority. Raises BrokenError if there is more padding
    than payload."""
    start, stop = 0, len(payload)
    if flags & PADDED:
        start = 1
        stop -= payload[0] if payload else 1
    if flags & PRIORITISED:
        start += 5
    if start > stop:
        raise BrokenError(PROTOCOL_ERROR, "more padding than payload")
    return payload[start:stop]


class ResponseHeaderBlocks(NamedTuple):
    """The header blocks of a response and the heads of their frames, without the stream's number."""

    headers_head: bytes
    headers: bytes
    trailers_head: bytes
    trailers: bytes

    @classmethod
    def of(cls, headers: bytes, trailers: bytes) -> "ResponseHeaderBlocks":
        """The framed form of small blocks: each must fit into a frame of DEFAULT_MAX_FRAME bytes."""
        heads = [
            (len(block) << 8 | HEADERS).to_bytes(4, "big") + bytes([flags])
            for block, flags in ((headers, END_HEADERS), (trailers, END_HEADERS | END_STREAM))
        ]
        return cls(heads[0], headers, heads[1], trailers)
