"""A client of gRPC that never gives the server a window: the bytes that it sends. Pure; grpcio cannot do this."""

from collections.abc import Sequence

from bench.grpc_words import SERVICE, frame, prefixed
from bench.isolation.crowd import Raw
from bench.isolation.probe import message

_DATA, _HEADERS, _SETTINGS = 0, 1, 4  # RFC 9113, section 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4  # the number of a setting: RFC 9113, section 6.5.2
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LIVE_S = 0.3
_NUM_LIVE = 200


def call(stream: int, method: str, packed: bytes) -> bytes:
    """The frames of a unary call: headers that refer to no earlier ones, and the message."""
    from hpack import Encoder

    encoder = Encoder()
    encoder.header_table_size = 0
    headers = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), (":authority", "127.0.0.1")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    head, body = encoder.encode(headers), prefixed(packed)
    return frame(_HEADERS, _END_HEADERS, stream, head) + frame(_DATA, _END_STREAM, stream, body)


def closed_windows(port: int, model: str, numbers: Sequence[float], count: int) -> Raw:
    """The bytes of `count` calls for this model on one connection, and of ServerLive every LIVE_S."""
    packed = message(model, numbers)
    opening = _PREFACE + frame(_SETTINGS, 0, 0, _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4))
    opening += frame(_SETTINGS, _ACK, 0, b"")
    opening += b"".join(call(2 * number + 1, "ModelInfer", packed) for number in range(count))
    later = [call(2 * number + 1, "ServerLive", b"") for number in range(count, count + _NUM_LIVE)]
    return Raw(port, opening.decode("latin-1"), [each.decode("latin-1") for each in later], LIVE_S)
