"""The headers, trailers, prefixes, timeouts and encodings of gRPC over HTTP/2. Pure; front-end processes.

Header blocks are made here as plain HPACK literals, which refer to the static table only: they are valid on every
connection, so that most of them are made once per process. (gRPC's PROTOCOL-HTTP2.md.)
"""

import re
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from shoal.errors import UnsupportedError
from shoal.frontend.v2.compression import AUTO_WBITS, WBITS, inflate
from shoal.memo import memoized

#: The prefix of a message: one byte, 1 if it is compressed, and its length in four bytes.
_PREFIX = struct.Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size

#: The encoding of messages that are not compressed.
IDENTITY: Final = "identity"
#: Bytes at which a status message is cut: gRPC clients refuse metadata of more than 8 KiB, and then lose the status,
#: too.
_MAX_MESSAGE_BYTES = 6 * 1024

_STATUS_200 = b"\x88"  # entry 8 of HPACK's static table
_CONTENT_TYPE = b"\x0f\x10\x10application/grpc"  # the static table's name 31, and a value of 16 bytes
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_NOT_PLAIN = re.compile(rb"[^ -$&-~]")


def prefix(nbytes: int, *, is_compressed: bool = False) -> bytes:
    """The five bytes before a message of `nbytes` bytes."""
    return _PREFIX.pack(is_compressed, nbytes)


# --- header blocks ---


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that enters no table (RFC 7541, 6.2.2)."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    """The length of a text as an HPACK integer with a prefix of seven bits (RFC 7541, 5.1)."""
    nbytes = len(text)
    if nbytes < 127:
        return bytes((nbytes,))
    nbytes -= 127
    length = bytearray((127,))
    while nbytes > 127:
        length.append(nbytes & 127 | 128)
        nbytes >>= 7
    length.append(nbytes)
    return bytes(length)


#: The header block of every response with messages.
HEADERS = _STATUS_200 + _CONTENT_TYPE


def headers(encoding: str) -> bytes:
    """The header block of a response whose messages may be compressed by `encoding`."""
    return HEADERS if encoding == IDENTITY else HEADERS + _literal(b"grpc-encoding", encoding.encode())


@memoized("grpc_trailers", 64)
def trailers(status: int, message: str = "") -> bytes:
    """The header block that ends a response."""
    block = _literal(b"grpc-status", str(status).encode())
    return block + _literal(b"grpc-message", percent_encode(message)) if message else block


#: The header block that ends a response to a call that has succeeded.
OK: Final = trailers(0)


def with_timing(block: bytes, timing: str) -> bytes:
    """A response's last header block, with the times of its request."""
    return block + _literal(b"server-timing", timing.encode("ascii"))


def only_trailers(status: int, message: str) -> bytes:
    """The one header block of a response without messages."""
    return HEADERS + trailers(status, message)


def percent_encode(message: str) -> bytes:
    """A status message as a header value."""
    encoded = _NOT_PLAIN.sub(lambda match: b"%%%02X" % match[0][0], message.encode("utf-8", "replace"))
    if len(encoded) > _MAX_MESSAGE_BYTES:
        encoded = encoded[:_MAX_MESSAGE_BYTES]
        cut = encoded.rfind(b"%", -2)  # no escape is cut in two
        encoded = encoded[:cut] if cut >= 0 else encoded
    return encoded


def refusal(request: Mapping[str, str]) -> bytes | None:
    """The whole response, as one header block, to a request that is not gRPC; None for a gRPC request.

    `te: trailers` may be missing: some proxies drop that field, and trailers are sent anyway.
    """
    if request[":method"] != "POST":
        return _literal(b":status", b"405") + _literal(b"allow", b"POST")
    content_type = request.get("content-type", "")
    if content_type != "application/grpc" and not content_type.startswith(("application/grpc+", "application/grpc;")):
        return _literal(b":status", b"415")
    return None


def parse_timeout(value: str) -> float:
    """The value of a `grpc-timeout` header in seconds. Raises ValueError for a text that is no such value."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"no grpc-timeout: {value!r}")
    return int(match[1]) * _SECONDS[match[2]]


# --- encodings ---


def refuse_encoding(encoding: str) -> None:
    """Raise UnsupportedError for an encoding other than identity, deflate and gzip."""
    if encoding != IDENTITY and encoding not in WBITS:
        raise UnsupportedError(f"Compression algorithm '{encoding}' is not supported.")


def decompress(encoding: str, message: bytes | memoryview, max_nbytes: int) -> bytes | memoryview:
    """The decompressed message.

    Raises UnsupportedError for an encoding other than identity, deflate and gzip; ExpansionLimitError for more than
    `max_nbytes` bytes; InvalidArgumentError for a damaged stream.
    """
    refuse_encoding(encoding)
    return message if encoding == IDENTITY else inflate(message, max_nbytes)


def decompressed_start(encoding: str, start: bytes | memoryview, max_nbytes: int) -> bytes:
    """The first bytes of a message, at most `max_nbytes`, decompressed from the first of its compressed bytes; b"" if
    these are damaged, or the encoding is unknown."""
    if encoding not in WBITS:
        return b""
    try:
        return zlib.decompressobj(AUTO_WBITS).decompress(start, max_nbytes)
    except zlib.error:
        return b""


def response_encoding(level: str, accepted: str) -> str:
    """The encoding for a compression level and a client that accepts `accepted`, chosen as in gRPC core."""
    supported = {name.strip() for name in accepted.split(",")}
    ranked = [name for name in ("gzip", "deflate") if name in supported]
    if level == "none" or not ranked:
        return IDENTITY
    return ranked[0] if level == "low" else ranked[-1]
