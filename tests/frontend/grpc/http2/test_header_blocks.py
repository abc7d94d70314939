"""frontend/grpc/http2/header_blocks.py: a block is remembered as long as it means the same, and no longer."""

import hpack
import hpack.huffman_table
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


def test_a_trace_and_a_request_id_of_its_own_make_no_block_unknown() -> None:
    blocks = HeaderBlocks(Limits())
    for number in range(1, 100):
        block = PLAIN_CALL + own(number, 7 * number) + literal(b"key", b"k")
        trace = f"00-{number:032x}-{number:016x}-01"
        assert outcome(blocks, block) == {
            **dict(HeaderBlocks(Limits()).request(PLAIN_CALL)),
            "traceparent": trace,
            "x-request-id": f"{7 * number:08}",
            "key": "k",
        }
        assert len(blocks.known) == 1
        found = blocks.find(block)
        assert found is not None
        assert found.headers is blocks.known[found.key]
        assert [block[start:end] for _, start, end in found.own] == [trace.encode(), b"%08d" % (7 * number)]
    assert blocks.find(PLAIN_CALL + own(1, 1) + literal(b"key", b"l")) is None


@pytest.mark.parametrize("value", [b"a\0b", b"a\rb", b"\ta"])
def test_a_value_of_its_own_is_checked_as_any_other(value: bytes) -> None:
    blocks = HeaderBlocks(Limits())
    blocks.request(PLAIN_CALL + literal(b"traceparent", bytes(len(value)).replace(b"\0", b"x")))
    with pytest.raises(MalformedError):
        blocks.request(PLAIN_CALL + literal(b"traceparent", value))


@pytest.mark.parametrize("has_trace", [False, True])
def test_bytes_like_a_trace_within_a_huffman_code_belong_to_their_field(has_trace: bool) -> None:
    blocks = HeaderBlocks(Limits())
    for last, value in (
        (b"\xff", "00eBadF/Qp=F6g%:j0o"),
        (b"\x7f", "00eBadF/Qp=F6g%:j0e"),
        (b"?", "00eBadF/Qp=F6g%:j0c"),
    ):
        code = b"\0\x0btraceparent\1" + last
        assert hpack.huffman_table.decode_huffman(code) == value.encode()
        field = b"\0\1k%c%b" % (0x80 | len(code), code)
        headers = blocks.request(PLAIN_CALL + field + (literal(b"traceparent", last) if has_trace else b""))
        assert headers["k"] == value
        assert headers.get("traceparent") == (last.decode("latin-1") if has_trace else None)


PIECES = st.sampled_from(
    [
        own(1, 2),
        own(3, 4),
        own(3, 4)[:-2],
        literal(b"traceparent", b"x"),
        literal(b"a", b"1"),
        b"\0\x0btraceparent\7",
        b"\0",
    ]
)


@settings(max_examples=300)
@given(st.lists(st.lists(PIECES | st.binary(max_size=3), max_size=4).map(b"".join), min_size=2, max_size=6), st.data())
def test_what_has_come_before_changes_no_outcome(tails: list[bytes], data: st.DataObject) -> None:
    blocks = HeaderBlocks(Limits())
    for tail in tails:
        block = bytearray(PLAIN_CALL + tail)
        if tail and data.draw(st.booleans()):
            block[data.draw(st.integers(len(PLAIN_CALL), len(block) - 1))] = data.draw(st.integers(0, 255))
        fresh = HeaderBlocks(Limits())
        ours, table = fresh._decoder.header_table, blocks._decoder.header_table
        ours.dynamic_entries.extend(table.dynamic_entries)
        ours._current_size, ours.maxsize = table._current_size, table.maxsize
        expected = outcome(fresh, bytes(block))
        assert outcome(blocks, bytes(block)) == expected
        if isinstance(expected, tuple) and expected[0] is BrokenError:
            return


def test_nothing_but_the_named_errors() -> None:
    blocks = HeaderBlocks(Limits())
    for first in range(256):
        for second in range(0, 256, 9):
            with pytest.raises((MalformedError, BrokenError)):
                blocks.request(bytes((first, second)))
