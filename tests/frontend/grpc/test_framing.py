"""frontend/grpc/framing.py: what a gRPC client reads of it, by other hands."""

import gzip
import zlib
from collections.abc import Callable
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.frontend.grpc import framing
from shoal.frontend.v2.compression import deflate


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]


def test_header_blocks() -> None:
    assert decoded(framing.HEADERS) == [(":status", "200"), ("content-type", "application/grpc")]
    assert framing.headers("identity") == framing.HEADERS
    assert decoded(framing.headers("gzip"))[-1] == ("grpc-encoding", "gzip")


def test_trailers() -> None:
    assert decoded(framing.trailers(0)) == [("grpc-status", "0")]
    assert framing.trailers(0) is framing.trailers(0)
    assert decoded(framing.trailers(14, "müde 100%")) == [("grpc-status", "14"), ("grpc-message", "m%C3%BCde 100%25")]
    assert decoded(framing.only_trailers(12, "no")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
        ("grpc-message", "no"),
    ]


@pytest.mark.parametrize("nbytes", [0, 1, 126, 127, 128, 254, 255, 383, 6000])
def test_a_message_of_any_length(nbytes: int) -> None:
    fields = decoded(framing.trailers(2, "x" * nbytes))
    assert fields[1:] == ([("grpc-message", "x" * nbytes)] if nbytes else [])


@settings(max_examples=50)
@given(st.text(max_size=50))
def test_percent_encoding(message: str) -> None:
    encoded = framing.percent_encode(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode()) == message


def test_a_message_too_long_for_clients_is_cut_between_escapes() -> None:
    for at in range(3):
        encoded = framing.percent_encode("x" * at + "%" * 5000)
        assert 6140 < len(encoded) <= 6144
        assert encoded == b"x" * at + b"%25" * ((len(encoded) - at) // 3)
    assert framing.percent_encode("\ud800") == b"?"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("100m", 0.1),
        ("5u", 5e-6),
        ("7n", 7e-9),
        ("99999999H", 359_999_996_400),
        ("0S", 0),
    ],
)
def test_timeouts(value: str, seconds: float) -> None:
    assert framing.parse_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "1", "m", "100 m", "-1S", "1.5S", "123456789S", "1s", "1h", "1Sx", "٣S"])
def test_no_timeouts(value: str) -> None:
    with pytest.raises(ValueError, match="no grpc-timeout"):
        framing.parse_timeout(value)


def test_prefixes() -> None:
    assert framing.prefix(258) == b"\0\0\0\1\2"
    assert framing.prefix(1, is_compressed=True) == b"\1\0\0\0\1"
    assert framing.PREFIX_BYTES == 5


def request(**fields: str) -> dict[str, str]:
    call = {":method": "POST", ":path": "/s/M", "content-type": "application/grpc", "te": "trailers"}
    return {**call, **{name.replace("_", "-"): value for name, value in fields.items()}}


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "application/grpc;x=y"])
def test_what_is_grpc(content_type: str) -> None:
    assert framing.refusal(request(content_type=content_type)) is None
    without_te = request(content_type=content_type)
    del without_te["te"]
    assert framing.refusal(without_te) is None


def test_what_is_not() -> None:
    get = framing.refusal({**request(), ":method": "GET"})
    assert get is not None
    assert decoded(get) == [(":status", "405"), ("allow", "POST")]
    for content_type in ("application/json", "application/grpc-web", "text/plain", ""):
        refusal = framing.refusal(request(content_type=content_type))
        assert refusal is not None
        assert decoded(refusal) == [(":status", "415")]
    assert framing.refusal({":method": "POST"}) is not None


def test_decompression() -> None:
    message = b"tensor" * 1000
    assert framing.decompress("identity", message, 1) is message
    assert framing.decompress("gzip", gzip.compress(message), 6000) == message
    assert framing.decompress("deflate", memoryview(zlib.compress(message)), 6000) == message
    with pytest.raises(InvalidArgumentError, match=r"exceeds the maximum allowed value of 5999 bytes\.$"):
        framing.decompress("gzip", gzip.compress(message), 5999)
    with pytest.raises(UnsupportedError, match=r"Compression algorithm 'br' is not supported\."):
        framing.decompress("br", message, 1)


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b"x" + body])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_damaged_messages(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidArgumentError, match="failed to decompress the request body"):
        framing.decompress(encoding, damage(deflate(encoding, [b"tensor" * 100])), 10_000)


def test_a_bomb_does_not_unfold() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(InvalidArgumentError):
        framing.decompress("deflate", bomb, 1000)


@pytest.mark.parametrize(
    ("level", "accepted", "encoding"),
    [
        ("none", "identity, deflate, gzip", "identity"),
        ("low", "identity, deflate, gzip", "gzip"),
        ("medium", "identity,deflate,gzip", "deflate"),
        ("high", "identity, deflate, gzip", "deflate"),
        ("high", "gzip", "gzip"),
        ("low", "deflate", "deflate"),
        ("high", "", "identity"),
        ("low", "identity, br", "identity"),
    ],
)
def test_what_a_level_means(level: str, accepted: str, encoding: str) -> None:
    assert framing.response_encoding(level, accepted) == encoding


def test_compression() -> None:
    assert gzip.decompress(deflate("gzip", [b"ab", memoryview(b"cd")])) == b"abcd"
    assert zlib.decompress(deflate("deflate", [b"ab", memoryview(b"cd")])) == b"abcd"
