"""frontend/road/connection.py: gunicorn's requests keep their heads as clients spelled them, in whatever pieces."""

from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser

from shoal.frontend.road.connection import SpelledRequest

HEAD = b"POST /v2 HTTP/1.1\r\nHost: x\r\nx-Mixed-CASE: a\r\nX_Under: b\r\nContent-Length: 4\r\n\r\n"


def requests(pieces: list[bytes]) -> Any:
    """gunicorn's parser, as the road has it."""
    parser: Any = RequestParser(Config(), iter(pieces), ("127.0.0.1", 5))
    parser.mesg_class = SpelledRequest
    return parser


@pytest.mark.parametrize("size", [1, 7, 50, len(HEAD), len(HEAD) + 2, 1000])
def test_the_head_of_each_request_is_kept_and_nothing_else(size: int) -> None:
    sent = HEAD + b"body" + HEAD.replace(b"Mixed", b"Other") + b"\r\n\r\n" + b"GET / HTTP/1.0\r\n\r\n"
    found = requests([sent[start : start + size] for start in range(0, len(sent), size)])
    first = next(found)
    assert (first.head, first.body.read()) == (HEAD, b"body")
    assert ("X-MIXED-CASE", "a") in first.headers
    assert "read" not in vars(first.unreader)
    second = next(found)
    assert (second.head, second.body.read()) == (HEAD.replace(b"Mixed", b"Other"), b"\r\n\r\n")
    assert next(found).head.startswith(b"GET / HTTP/1.0\r\n")
