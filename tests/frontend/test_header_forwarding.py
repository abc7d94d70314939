"""frontend/header_forwarding.py: which headers become parameters, under which names, and which may not."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.header_forwarding import check_forwarded, forwarded

HEAD = (
    b"POST /v2/models/x-model/infer HTTP/1.1\r\nHost: x-host\r\nX-Request-ID: 7\r\nx-user:  J\xc3\xbcrgen \t\r\n"
    b"Empty-X-:\r\nAccept: a:b\r\nX_Under: 1\r\n\r\n"
)


@pytest.mark.parametrize(
    ("pattern", "fields"),
    [
        ("", {}),
        ("nothing", {}),
        ("x-request-id", {"X-Request-ID": "7"}),
        # A part of the name is enough; values, the path and the body are not looked at.
        ("X-", {"X-Request-ID": "7", "x-user": "Jürgen", "Empty-X-": ""}),
        ("^x-.*(id|user)$", {"X-Request-ID": "7", "x-user": "Jürgen"}),
        ("accept", {"Accept": "a:b"}),
        ("under", {"X_Under": "1"}),
        ("HOST", {"Host": "x-host"}),
    ],
)
def test_what_matches_is_forwarded_as_it_was_spelled(pattern: str, fields: dict[str, str]) -> None:
    for rest in (b"", b"x-body: 1\r\n\r\n", b'{"x-user":1}'):
        assert forwarded(pattern, HEAD + rest) == fields
    assert forwarded(pattern, b"\r\n" + HEAD) == fields


def test_values_of_one_name_are_joined_and_spellings_are_kept_apart() -> None:
    head = b"POST / HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nX-A: 3\r\n\r\n"
    assert forwarded("x-a", head) == {"X-A": "1,3", "x-a": "2"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert forwarded("a", b"POST / HTTP/1.1\r\nA: \xff\r\n\r\n") == {"A": "\ufffd"}


def test_without_a_head_nothing_is_forwarded() -> None:
    assert forwarded(".*", b"") == {}


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
        "triton_", "triton_x",
    ],
)  # fmt: skip
def test_what_is_reserved(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        check_forwarded({"X-Fine": "1", name: "1"})
    assert str(refusal.value) == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_what_is_not_reserved() -> None:
    check_forwarded({"Priority": "u=1", "Timeout": "1", "Triton_x": "1", "header": "1"})
