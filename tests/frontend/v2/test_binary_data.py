"""Header length, the tail's shares, BYTES elements: sentences and bounds."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.v2.infer import parse_header_length, take
from shoal.star.validation import check_bytes_elements

WHERE = "for inference input 'IN' for model 'm'"


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("100", 100), (" 7 ", 7), ("007", 7)])
def test_parses_the_header_length(text: str, value: int) -> None:
    assert parse_header_length(text, 100) == value


@pytest.mark.parametrize("text", ["-1", "101", "99999999999", "9" * 5000])
def test_refuses_a_header_length_out_of_range(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_header_length(text, 100)
    assert str(caught.value) == f"inference header size should be in range (0, 100), got: {text}"


@pytest.mark.parametrize("text", ["", "abc", "1e2", "+5", "0x10", "1_0", "--1", "1 2", "٣", "²"])
def test_refuses_a_header_length_that_is_no_number(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_header_length(text, 100)
    assert str(caught.value) == f"Unable to parse Inference-Header-Content-Length, got: {text}"


def test_takes_views_and_never_more_than_there_is() -> None:
    tail = memoryview(b"abcdef")
    part = take(tail, 2, 4, "IN", "m")
    assert (bytes(part), part.obj) == (b"cdef", tail.obj)
    for nbytes in (5, 2**64 - 1):
        with pytest.raises(InvalidArgumentError) as caught:
            take(tail, 2, nbytes, "IN", "m")
        assert str(caught.value) == (
            f"unexpected size for input 'IN', expecting {nbytes - 4} additional bytes for model 'm'"
        )


@pytest.mark.parametrize(
    ("data", "expected", "problem"),
    [
        (b"", 0, None),
        (b"\1\0\0\0a\0\0\0\0", 2, None),
        (b"\1\0\0\0a", 2, f"expected 2 string elements {WHERE}, got 1"),
        (b"\1\0\0\0a" * 9, 1, f"unexpected number of string elements 2 {WHERE}, expecting 1"),
        (
            b"\1\0\0\0ab\0\0",
            2,
            f"incomplete string length indicator {WHERE}, expecting 4 bytes but only 3 bytes available. "
            "Please make sure the string length indicator is in one buffer.",
        ),
        (
            b"\xff\xff\xff\xffabc",
            1,
            f"incomplete string data {WHERE}, expecting string of length 4294967295 but only 3 bytes available.",
        ),
        (
            b"\4\0\0\0abc",
            1,
            f"incomplete string data {WHERE}, expecting string of length 4 but only 3 bytes available.",
        ),
    ],
)
def test_checks_bytes_elements(data: bytes, expected: int, problem: str | None) -> None:
    assert check_bytes_elements(memoryview(data), expected, "IN", "m") == problem
