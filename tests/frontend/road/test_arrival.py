"""frontend/road/arrival.py: the last byte of a request, in whatever pieces it comes; the same as gunicorn's."""

import random

import pytest

from shoal.frontend.road.arrival import MAX_HEAD_BYTES, Arrival, Framing
from tests.frontend.gunicorn_judge import CHUNKED, HEAD, LIMIT, WHOLE, assert_same_end, complete_after, judge, mutated


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


@pytest.mark.parametrize("seed", range(8))
def test_gunicorn_finds_no_later_end_in_a_request_that_it_accepts(seed: int) -> None:
    """Mutated requests, with another behind each."""
    rng = random.Random(seed)
    assert sum(assert_same_end(mutated(rng) + HEAD + b"\r\n", rng.choice([1, 3, 1000])) for _ in range(400)) > 40
