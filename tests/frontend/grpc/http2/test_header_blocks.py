"""frontend/grpc/http2/header_blocks.py: a block is remembered as long as it means the same, and no longer."""

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontend.grpc.http2.frames import BrokenError
from shoal.frontend.grpc.http2.header_blocks import HeaderBlocks, MalformedError, TooLargeError, body_length
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import CALL, PLAIN_CALL


def test_what_changes_nothing_is_remembered_until_something_changes() -> None:
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    first, second = encoder.encode(CALL), encoder.encode(CALL)
    assert blocks.request(first) == dict(CALL)
    assert blocks.known == {}
    assert blocks.request(second) == dict(CALL)
    assert blocks.known == {second: dict(CALL)}
    other = encoder.encode([*CALL, ("grpc-timeout", "1S")])
    blocks.request(other)
    assert blocks.known == {}
    with pytest.raises(MalformedError):  # the same bytes mean something else now
        blocks.request(second)


def test_trailers_change_the_table_too() -> None:
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    blocks.request(PLAIN_CALL)
    assert blocks.known
    blocks.trailers(encoder.encode([("a", "b")]))
    assert blocks.known == {}


def test_a_table_cut_and_grown_again_is_another() -> None:
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    blocks.request(encoder.encode(CALL))
    known = encoder.encode(CALL)
    blocks.request(known)
    assert blocks.known
    blocks.request(b"\x20\x3f\xe1\x1f" + PLAIN_CALL)  # to nothing, and to 4096
    assert known not in blocks.known


def test_few_and_short_blocks_are_remembered() -> None:
    blocks = HeaderBlocks(Limits())
    for at in range(1000):
        blocks.request(PLAIN_CALL + b"\0\1n\3" + str(at).zfill(3).encode())
        assert len(blocks.known) <= 64
    blocks.request(PLAIN_CALL + b"\0\1n\x7f\x80\x01" + b"x" * 255)
    assert max(map(len, blocks.known)) <= 256


def test_the_lists_of_remembered_blocks_are_few_bytes_however_short_the_blocks() -> None:
    """A block of a few bytes refers four times to a token in the table."""
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    fields = [*CALL, *[("token", "t" * 3500)] * 4]
    blocks.request(encoder.encode(fields))
    block = encoder.encode(fields)
    assert len(block) < 20
    for at in range(100):
        blocks.request(block + b"\0\1n\3" + str(at).zfill(3).encode())
        nbytes = sum(len(value) for headers in blocks.known.values() for value in headers.values())
        assert 0 < nbytes <= blocks.known_nbytes <= 64 * 1024
    blocks.bound(blocks.known_nbytes - 1)
    assert (blocks.known_nbytes, blocks.known) == (0, {})


def test_values_of_one_name_are_joined() -> None:
    fields = [*CALL, ("a", "1"), ("cookie", "x=1"), ("a", ""), ("cookie", "y=2")]
    headers = HeaderBlocks(Limits()).request(hpack.Encoder().encode(fields))
    assert (headers["a"], headers["cookie"]) == ("1,", "x=1; y=2")


def test_bytes_beyond_ascii_in_values_are_kept() -> None:
    assert HeaderBlocks(Limits()).request(PLAIN_CALL + b"\0\1a\2\xc3\xa9")["a"].encode("latin-1") == b"\xc3\xa9"


def test_a_refusal_of_a_block_prints_no_address() -> None:
    with pytest.raises(BrokenError) as raised:
        HeaderBlocks(Limits()).request(memoryview(b"\x82\x84\xff\xff\xff"))  # type: ignore[arg-type]
    assert str(raised.value) == "a header block that cannot be decompressed (HPACKDecodingError)"


@pytest.mark.parametrize("value", [" v", "v ", " ", "", " a b "])
def test_blanks_around_a_value_are_kept_as_grpcio_keeps_them(value: str) -> None:
    assert HeaderBlocks(Limits()).request(hpack.Encoder().encode([*CALL, ("a", value)]))["a"] == value


@pytest.mark.parametrize("value", ["\tv", "v\t", "\t"])
def test_a_tab_around_a_value_is_malformed(value: str) -> None:
    with pytest.raises(MalformedError):
        HeaderBlocks(Limits()).request(hpack.Encoder().encode([*CALL, ("a", value)]))


def test_a_list_too_large_leaves_the_table_in_step() -> None:
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    large = encoder.encode([*CALL, *((f"x{at}", "y" * 1000) for at in range(20))])
    with pytest.raises(TooLargeError):
        blocks.request(large)
    assert blocks.request(encoder.encode(CALL)) == dict(CALL)
    with pytest.raises(BrokenError):
        blocks.request(encoder.encode([*CALL, *((f"z{at}", "y" * 1000) for at in range(70))]))


@pytest.mark.parametrize(
    ("text", "nbytes"), [("0", 0), ("12", 12), ("", -1), ("-1", -1), ("1 ", -1), ("٣", -1), ("9" * 19, -1)]
)
def test_body_length(text: str, nbytes: int) -> None:
    assert body_length(text) == nbytes


NAMES = st.text("abcdefgh-", min_size=1, max_size=3).filter(lambda name: name != "te")
VALUES = st.text("xyz", max_size=3)


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=3), max_size=20), st.booleans())
def test_what_is_remembered_is_what_would_be_decoded(lists: list[list[tuple[str, str]]], huffman: bool) -> None:
    blocks, encoder, decoder = HeaderBlocks(Limits()), hpack.Encoder(), hpack.Decoder()
    encoder.header_table_size = 200  # so that entries leave it
    for fields in lists:
        block = encoder.encode([*CALL, *fields], huffman)
        expected: dict[str, str] = {}
        for name, value in decoder.decode(block):
            key, text = str(name), str(value)
            expected[key] = f"{expected[key]},{text}" if key in expected else text
        assert (blocks.known.get(block) or blocks.request(block)) == expected
        assert blocks.known.get(block, expected) == expected


def test_nothing_but_the_named_errors() -> None:
    blocks = HeaderBlocks(Limits())
    for first in range(256):
        for second in range(0, 256, 9):
            with pytest.raises((MalformedError, BrokenError)):
                blocks.request(bytes((first, second)))
