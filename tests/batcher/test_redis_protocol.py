"""RESP, byte by byte."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.redis_protocol import ProtocolError, Refusal, Reply, ReplyReader, command

MANY = b"+OK\r\n$3\r\na\r\n\r\n$-1\r\n:42\r\n-ERR no\r\n$0\r\n\r\n"
REPLIES: list[Reply] = [b"OK", b"a\r\n", None, b"42", Refusal("ERR no"), b""]


def test_commands_may_hold_any_bytes() -> None:
    assert command(b"SET", b"a b", b"\r\n\0") == b"*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$3\r\n\r\n\0\r\n"


@given(st.lists(st.integers(0, len(MANY)), max_size=6))
def test_replies_come_whole_however_they_are_cut(cuts: list[int]) -> None:
    reader, replies = ReplyReader(10), list[Reply]()
    edges = [0, *sorted(cuts), len(MANY)]
    for start, end in pairwise(edges):
        replies += reader.read(MANY[start:end])
    assert replies == REPLIES
    assert isinstance(replies[4], Refusal)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"*1\r\n", "a reply begins with b'*'"),
        (b"HTTP/1.1 400 Bad Request\r\n", "a reply begins with b'H'"),
        (b"\r\n", "a reply begins with b'\\\\r'"),
        (b"$x\r\n", "a value has b'x' bytes"),
        (b"$11\r\n", "a value has 11 bytes, and 10 were asked for at most"),
        (b"$1\r\nabc", "a value does not end where it should"),
        (b"+" + bytes(1 << 16), "a line does not end"),
    ],
)
def test_what_is_no_reply(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        ReplyReader(10).read(data)


@given(st.binary(max_size=40))
def test_garbage_is_a_reply_or_an_error(data: bytes) -> None:
    try:
        ReplyReader(10).read(data)
    except ProtocolError:
        return
