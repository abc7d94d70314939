"""frontend/grpc/http2/huffman.py, against the hpack package: the same texts, and the same codes refused."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.frontend.grpc.http2.huffman import decode

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        # RFC 7541, C.4.1, C.4.2 and C.6.1.
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("", ""),
    ],
)
def test_texts_of_the_rfc(code: str, text: str) -> None:
    assert decode(bytes.fromhex(code)) == text


def test_each_byte() -> None:
    for byte in range(256):
        assert decode(ENCODER.encode(bytes((byte,)))) == chr(byte)


@given(st.binary(max_size=200))
def test_a_text_comes_back(text: bytes) -> None:
    assert decode(ENCODER.encode(text)) == text.decode("latin-1")


@settings(max_examples=500)
@given(st.binary(max_size=12))
@example(b"\xff")  # a whole byte of padding
@example(b"\x1f\xff")
@example(b"\x1e")  # padding of a zero
@example(b"\xff\xff\xff\xfc")  # EOS
@example(b"\xff\xff\xff\xff")
@example(b"\xff\xff\xff\xfb\xff")
def test_any_bytes_are_decoded_or_refused_as_the_package_does(code: bytes) -> None:
    try:
        expected: object = bytes(decode_huffman(code)).decode("latin-1")
    except HPACKDecodingError:
        expected = HPACKDecodingError
    try:
        found: object = decode(code)
    except HPACKDecodingError:
        found = HPACKDecodingError
    assert found == expected
