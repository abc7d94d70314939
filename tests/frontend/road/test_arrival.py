"""frontend/road/arrival.py: the last byte of a request, in whatever pieces it comes; the same as gunicorn's."""

import random
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from gunicorn.http.parser import RequestParser

from shoal.frontend.road.arrival import MAX_HEAD_BYTES, Arrival, Framing
from shoal.frontend.road.connection import ParsedHead, parsed

LIMIT = 1 << 20
HEAD = b"POST /v2 HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = {
    HEAD + b"\r\n": 0,
    HEAD + b"Content-Length: 0\r\n\r\n": 0,
    HEAD + b"content-LENGTH:5 \r\n\r\nabcde": 5,
    CHUNKED + b"0\r\n\r\n": 0,
    CHUNKED + b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n000\r\nA: b\r\n\r\n": 19,
}


class Peer:
    """The parts of a connection that a head is parsed with."""

    cfg = Config()
    client = ("127.0.0.1", 5)


def judge(head: bytes) -> Framing | None:
    found: ParsedHead | None = parsed(head, Peer())  # type: ignore[arg-type]
    return None if found is None else Framing(found.length, LIMIT, found.expects_continue)


def complete_after(data: bytes, size: int) -> int:
    """How many bytes of `data`, in pieces of this size, are looked at before the request counts as complete; -1: it
    does not."""
    arrival = Arrival(judge)
    for start in range(0, len(data), size):
        arrival.add(data[start : start + size])
        if arrival.is_complete:
            return min(start + size, len(data))
    return -1


@pytest.mark.parametrize(("request_bytes", "nbytes"), WHOLE.items())
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_a_request_is_complete_with_its_last_byte(request_bytes: bytes, nbytes: int, piece: int) -> None:
    arrival = Arrival(judge)
    pieces = [request_bytes[start : start + piece] for start in range(0, len(request_bytes), piece)]
    for each in pieces[:-1]:
        arrival.add(each)
        assert not arrival.is_complete
    arrival.add(pieces[-1])
    assert arrival.is_complete
    assert arrival.body_nbytes == nbytes
    assert arrival.head == request_bytes[: request_bytes.index(b"\r\n\r\n") + 4]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"x" * 8193,
        HEAD + b"a: b\r\n" * (MAX_HEAD_BYTES // 6),
        HEAD + b"a: b\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1),
        CHUNKED + b"zz\r\n",
        CHUNKED + b"1" * 2000,
        CHUNKED + b"%x\r\n" % (LIMIT + 1),
        CHUNKED + b"1\r\nx\r\n" * 65537,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 3),
    ],
)
@pytest.mark.parametrize("piece", [100, 1 << 20])
def test_what_will_be_refused_is_not_waited_for(request_bytes: bytes, piece: int) -> None:
    assert complete_after(request_bytes, piece) > 0


def test_the_data_of_a_chunked_body_counts_and_its_framing_does_not() -> None:
    arrival = Arrival(judge)
    arrival.add(CHUNKED)
    for _ in range(16):
        arrival.add(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    assert (arrival.body_nbytes, arrival.is_complete) == (LIMIT, False)
    arrival.add(b"1\r\nx")
    assert arrival.is_complete


def test_a_chunk_that_only_its_endpoint_refuses_comes_up_to_the_limit() -> None:
    """The application reads one byte more than its limit, and says then that the body is too long."""
    arrival = Arrival(lambda _head: Framing(None, LIMIT, chunk_limit=2 * LIMIT))
    arrival.add(CHUNKED + b"%x\r\n" % (LIMIT + 1) + bytes(LIMIT))
    assert not arrival.is_complete
    arrival.add(b"x")
    assert arrival.is_complete
    arrival = Arrival(lambda _head: Framing(None, LIMIT, chunk_limit=2 * LIMIT))
    arrival.add(CHUNKED + b"%x\r\n" % (2 * LIMIT + 1))
    assert arrival.is_complete


def test_a_client_that_waits_to_be_told_to_send_is_seen() -> None:
    arrival = Arrival(judge)
    arrival.add(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert arrival.framing == Framing(5, LIMIT, expects_continue=True)
    assert not arrival.is_complete


PARTS = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"0", b"5", b"a", b";", b":", b"\0", b"\xff", b",", b"+", b"-", b"0x"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"0\r\n\r\n", b"A: b\r\n"),
]


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(list(WHOLE)))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        if rng.random() < 0.6:
            data[place:place] = rng.choice(PARTS)
        else:
            del data[place : place + rng.randint(1, 3)]
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_gunicorn_finds_no_later_end_in_a_request_that_it_accepts(seed: int) -> None:
    """Mutated requests, with another behind each: the request that gunicorn reads out of the collected bytes is the one
    that it reads out of all bytes, or none."""
    rng = random.Random(seed)
    num_accepted = 0
    for _ in range(400):
        data = mutated(rng) + HEAD + b"\r\n"
        end = complete_after(data, rng.choice([1, 3, 1000]))
        whole = read_by_gunicorn(data)
        if whole is None or end < 0:
            assert whole is None or end > 0, data
            continue
        num_accepted += 1
        assert read_by_gunicorn(data[:end]) in (whole, None), data
        assert read_by_gunicorn(data[:end]) == whole or end < whole[1], data
    assert num_accepted > 40


def read_by_gunicorn(data: bytes) -> tuple[bytes, int] | None:
    """The body, and how many bytes the request has; None if gunicorn refuses it."""
    parser: Any = RequestParser(Config(), iter([data]), ("127.0.0.1", 5))
    try:
        request = next(parser)
        body = request.body.read()
    except (ParseException, OSError, StopIteration):
        return None
    announced = [int(value) for name, value in request.headers if name == "CONTENT-LENGTH"]
    if announced and len(body) < announced[0]:  # cut short
        return None
    return body, len(data) - len(parser.unreader.buf.getvalue())
