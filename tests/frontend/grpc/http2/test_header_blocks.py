"""frontend/grpc/http2/header_blocks.py: a block is known until the table changes, and no longer."""

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
    with pytest.raises(MalformedError):  # the block's references now lead to other fields
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
    blocks.request(b"\x20\x3f\xe1\x1f" + PLAIN_CALL)  # the table's size to 0, and to 4096
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
        HeaderBlocks(Limits()).request(b"\x82\x84\xff\xff\xff")
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


def literal(name: bytes, value: bytes) -> bytes:
    """A field as gRPC's own libraries send metadata: not indexed, no Huffman code."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


def own(trace: int, id_: int) -> bytes:
    return literal(b"traceparent", b"00-%032x-%016x-01" % (trace, trace)) + literal(b"x-request-id", b"%08d" % id_)


def outcome(blocks: HeaderBlocks, block: bytes) -> object:
    try:
        return blocks.known.get(block) or blocks.request(block)
    except (MalformedError, TooLargeError, BrokenError) as error:
        return type(error), str(error)


def test_blocks_with_a_trace_and_a_request_id_of_their_own_are_not_remembered() -> None:
    blocks = HeaderBlocks(Limits())
    for number in range(1, 10):
        assert outcome(blocks, PLAIN_CALL + own(number, 7 * number) + literal(b"key", b"k")) == {
            **dict(CALL),
            "traceparent": f"00-{number:032x}-{number:016x}-01",
            "x-request-id": f"{7 * number:08}",
            "key": "k",
        }
    assert blocks.known == {}


@pytest.mark.parametrize("value", [b"a\0b", b"a\rb", b"\ta"])
def test_a_value_of_its_own_is_checked_as_any_other(value: bytes) -> None:
    blocks = HeaderBlocks(Limits())
    with pytest.raises(MalformedError):
        blocks.request(PLAIN_CALL + literal(b"traceparent", value))


def expected_outcome(decoder: hpack.Decoder, block: bytes) -> object:
    """What a request's block stands for, by the hpack package and the rules of RFC 9113, 8.2 and 8.3."""
    try:
        fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except hpack.HPACKError:
        return BrokenError
    if sum(32 + len(name) + len(value) for name, value in fields) > 16 * 1024:
        return TooLargeError
    pseudo = [name for name, _ in fields if name.startswith(b":")]
    if (
        pseudo != [name for name, _ in fields[: len(pseudo)]]
        or len(set(pseudo)) < len(pseudo)
        or not {b":method", b":scheme", b":path"} <= set(pseudo) <= {b":method", b":scheme", b":path", b":authority"}
        or (b":path", b"") in fields
    ):
        return MalformedError
    headers: dict[str, str] = {}
    for name, value in fields:
        if (
            not name
            or set(name.lstrip(b":")) - set(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
            or name in (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
            or (name == b"te" and value != b"trailers")
            or set(value) & set(b"\0\r\n")
            or value.strip(b" \t" if name in pseudo else b"\t") != value
        ):
            return MalformedError
        key, word = name.decode(), value.decode("latin-1")
        joint = "; " if key == "cookie" else ","
        headers[key] = f"{headers[key]}{joint}{word}" if key in headers else word
    return headers


#: Fields and references into the table, also to what earlier blocks have entered: of sound calls, and of others.
PIECES = st.sampled_from(
    [
        *[bytes((index,)) for index in (0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xC5)],
        b"\x40\x0btraceparent\1a",
        b"\x40\x0btraceparent\1b",
        b"\x7e\1c",
        b"\x7f\0\1d",
        b"\x7f\1\1e",
        b"\x40\1k\1v",
        b"\x40\1k\2\0v",
        b"\x40\2te\1v",
        b"\x40\6cookie\1v",
        b"\x40\7upgrade\1v",
        b"\x40\1K\1v",
        b"\x40\1k\x7f\xf1\x1e" + b"v" * 4080,
        literal(b"traceparent", b"x"),
        literal(b"x-request-id", b"y"),
        own(1, 2)[:-2],
    ]
)
SIZES = st.sampled_from([b"", b"", b"", b"\x20", b"\x3f\x45", b"\x3f\xe1\x1f", b"\x3f\x45\x3f\xe1\x1f"])
STARTS = st.sampled_from(
    [PLAIN_CALL, b"\x83\x86\x84", b"\x83\x86\x44\4/s/M", b"\x83\x86\xbe", b"\x83\x86\xbf", b"\x83"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(SIZES, STARTS, st.lists(PIECES, max_size=4).map(b"".join)), min_size=2, max_size=12))
def test_what_has_come_before_changes_no_outcome_but_by_the_table(parts: list[tuple[bytes, bytes, bytes]]) -> None:
    blocks, decoder = HeaderBlocks(Limits()), hpack.Decoder()
    for block in map(b"".join, parts):
        expected, found = expected_outcome(decoder, block), outcome(blocks, block)
        assert (found[0] if isinstance(found, tuple) else found) == expected
        if expected is BrokenError:
            return


@pytest.mark.parametrize("is_coded", [True, False])
def test_each_call_of_a_client_that_indexes_its_traces_has_its_own(is_coded: bool) -> None:
    """The table is full after 30 calls; then what all calls have in common leaves it, too, and is entered again."""
    blocks, encoder = HeaderBlocks(Limits()), hpack.Encoder()
    for number in range(400):
        fields = [*CALL, ("grpc-timeout", f"{9000 - number}m"), ("traceparent", f"00-{number:032x}-{number:016x}-01")]
        assert outcome(blocks, encoder.encode(fields, huffman=is_coded)) == dict(fields)
        assert blocks.known == {}


def test_nothing_but_the_named_errors() -> None:
    blocks = HeaderBlocks(Limits())
    for first in range(256):
        for second in range(0, 256, 9):
            with pytest.raises((MalformedError, BrokenError)):
                blocks.request(bytes((first, second)))
