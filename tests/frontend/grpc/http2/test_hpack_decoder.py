"""frontend/grpc/http2/hpack_decoder.py, against the hpack package: the same fields, the same table, the same errors."""

from collections.abc import Sequence

import hpack
import pytest
from hpack.exceptions import HPACKDecodingError, InvalidTableIndex, InvalidTableSizeError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontend.grpc.http2.hpack_decoder import MALFORMED, PLAIN, PSEUDO, Decoder

HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
Pairs = list[tuple[bytes, bytes]]


def integer(value: int, nbits: int, first: int) -> bytes:
    """RFC 7541, 5.1, in a byte whose other bits are `first`."""
    most = (1 << nbits) - 1
    if value < most:
        return bytes((first | value,))
    value -= most
    rest = bytearray()
    while value > 127:
        rest.append(value & 127 | 128)
        value >>= 7
    return bytes((first | most, *rest, value))


def text(value: bytes, *, is_coded: bool = False) -> bytes:
    value = HUFFMAN.encode(value) if is_coded else value
    return integer(len(value), 7, 0x80 * is_coded) + value


def pairs(decoder: Decoder, block: bytes) -> Pairs:
    return [(field.name.encode("latin-1"), field.value.encode("latin-1")) for field in decoder.decode(block)]


def table(decoder: Decoder) -> Pairs:
    return [(each.name.encode("latin-1"), each.value.encode("latin-1")) for each in decoder._entries[62:]]


def same(ours: Decoder, theirs: hpack.Decoder, block: bytes) -> bool:
    """Decode a block with both decoders, and compare; returns False if both refuse the block."""
    before = list(theirs.header_table.dynamic_entries), theirs.header_table.maxsize
    try:
        expected: object = [tuple(each) for each in theirs.decode(block, raw=True)]
    except HPACKDecodingError as error:
        expected = type(error)
    try:
        found: object = pairs(ours, block)
    except HPACKDecodingError as error:
        found = type(error)
    assert found == expected
    if isinstance(expected, type):
        return False
    entries, size = list(theirs.header_table.dynamic_entries), theirs.header_table.maxsize
    assert table(ours) == entries
    assert ours._nbytes == sum(32 + len(name) + len(value) for name, value in entries)
    assert ours.has_changed or (entries, size) == before
    return True


NAMES = st.sampled_from([b"a", b"traceparent", b":path", b"te", b"\xff\x00", b""]) | st.binary(max_size=4)
VALUES = st.sampled_from(
    [b"", b"x", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"v" * 900, b"w" * 4064]
)
INDICES = st.integers(0, 70) | st.integers(0, 300)
KINDS = st.sampled_from([(6, 0x40), (6, 0x40), (4, 0x00), (4, 0x10)])  # two of three enter the table


@st.composite
def literals(draw: st.DrawFn) -> bytes:
    nbits, first = draw(KINDS)
    index = draw(st.just(0) | INDICES)
    name = b"" if index else text(draw(NAMES), is_coded=draw(st.booleans()))
    value = draw(VALUES | st.binary(max_size=4))
    return integer(index, nbits, first) + name + text(value, is_coded=draw(st.booleans()))


REFERENCES = INDICES.map(lambda index: integer(index, 7, 0x80))
SIZES = st.sampled_from([0, 30, 31, 100, 4095, 4096, 4097]).map(lambda size: integer(size, 5, 0x20))
SOUND = st.lists(literals() | REFERENCES, max_size=6).map(b"".join)
BLOCKS = (
    st.lists(literals() | st.integers(1, 63).map(lambda index: integer(index, 7, 0x80)), max_size=6).map(b"".join)
    | st.tuples(st.lists(SIZES, max_size=2).map(b"".join), SOUND).map(b"".join)
    | st.tuples(SOUND, SIZES).map(b"".join)
    | st.binary(max_size=6)
)


@settings(max_examples=400, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=12), st.data())
def test_any_blocks_mean_what_they_mean_to_the_package(blocks: list[bytes], data: st.DataObject) -> None:
    ours, theirs = Decoder(), hpack.Decoder(max_header_list_size=1 << 30)
    for block in blocks:
        cut = data.draw(st.integers(0, len(block))) if data.draw(st.integers(0, 9)) == 0 else len(block)
        if not same(ours, theirs, block[:cut]):
            return


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), min_size=20, max_size=60),
    st.booleans(),
    st.sampled_from([0, 100, 200, 1000, 4096]),
)
def test_an_encoder_that_indexes_is_followed_however_often_its_table_is_full(
    lists: Sequence[Sequence[tuple[bytes, bytes]]], is_coded: bool, size: int
) -> None:
    ours, encoder = Decoder(), hpack.Encoder()
    encoder.header_table_size = size
    for number, fields in enumerate(lists):
        if number == len(lists) // 2:
            encoder.header_table_size = size // 2
        expected = [(b"x-number", b"%d" % number), *fields]
        assert pairs(ours, encoder.encode(expected, huffman=is_coded)) == expected
        assert table(ours) == list(encoder.header_table.dynamic_entries)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (b"\x80", InvalidTableIndex),
        (b"\xbe", InvalidTableIndex),  # 62, of an empty table
        (b"\x40\1a\1b\x82\xbf", InvalidTableIndex),  # 63, of one entry
        (b"\x7f\x00\1b", InvalidTableIndex),  # 63, as a name
        (b"\xff\x80\x80\x80\x80\x00", InvalidTableIndex),  # an integer of six bytes
        (b"\xff\x80\x80\x80\x80\x80\x00", HPACKDecodingError),  # of seven
        (b"\xff\x80\x80\x80\x80\x80", HPACKDecodingError),
        (b"\xff", HPACKDecodingError),
        (b"\x40", HPACKDecodingError),
        (b"\x40\x01", HPACKDecodingError),
        (b"\x40\x01a", HPACKDecodingError),
        (b"\x40\x01a\x02b", HPACKDecodingError),
        (b"\x40\x01a\x7f", HPACKDecodingError),
        (b"\x82\x20", HPACKDecodingError),  # a size behind a field
        (b"\x3f\xe2\x1f", InvalidTableSizeError),  # 4097
        (b"\x40\x01a\x81\x00", HPACKDecodingError),  # padding of zeros
        (b"\x40\x01a\x82\x1f\xff", HPACKDecodingError),  # too much of it
    ],
)
def test_what_is_refused(block: bytes, error: type[Exception]) -> None:
    assert not same(Decoder(), hpack.Decoder(), block)
    with pytest.raises(error) as raised:
        Decoder().decode(block)
    assert raised.type is error


def test_a_name_that_leaves_the_table_for_its_own_field_is_still_its_name() -> None:
    ours, theirs = Decoder(), hpack.Decoder()
    assert same(ours, theirs, b"\x3f\x45" + b"\x40\x01n" + text(b"v" * 67))  # of 100 bytes, which it fills
    assert same(ours, theirs, b"\x7e" + text(b"w" * 40))
    assert table(ours) == [(b"n", b"w" * 40)]
    assert same(ours, theirs, b"\x7e" + text(b"x" * 68))  # larger than the table
    assert table(ours) == []


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("a", "b", PLAIN),
        ("a", " \xe9 ", PLAIN),
        ("a", "", PLAIN),
        ("a", "b\tc", PLAIN),
        ("a", "\x7f\x80", PLAIN),
        ("a", "\tb", MALFORMED),
        ("a", "b\0", MALFORMED),
        ("a", "b\r", MALFORMED),
        ("a", "b\nc", MALFORMED),
        ("A", "b", MALFORMED),
        ("", "b", MALFORMED),
        ("a b", "b", MALFORMED),
        (":status", "200", MALFORMED),
        ("upgrade", "b", MALFORMED),
        ("te", "trailers", PLAIN),
        ("te", "gzip", MALFORMED),
        (":path", "/", PSEUDO),
        (":path", " /", MALFORMED),
        (":path", "/ ", MALFORMED),
        (":path", "/ /", PSEUDO),
        (":path", "\t", MALFORMED),
    ],
)
def test_the_kind_of_a_field(name: str, value: str, kind: int) -> None:
    decoder = Decoder()
    block = b"\x40" + text(name.encode("latin-1")) + text(value.encode("latin-1"))
    assert [field.kind for field in decoder.decode(block)] == [kind]
    assert [field.kind for field in decoder.decode(b"\xbe")] == [kind]
    assert [field.kind for field in decoder.decode(b"\x7e" + text(b"\n"))] == [MALFORMED]
