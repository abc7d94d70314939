"""A handler's response: status, headers, chunks; and its two usual shapes, JSON and error.

Pure: knows neither Flask nor gunicorn nor sockets. A chunk may be a view of a worker's block, so the sender of the
response must call `close` exactly once, after the last chunk has left or when it never will. Front-end processes only.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError

Headers = tuple[tuple[str, str], ...]

JSON_CONTENT: Headers = (("Content-Type", "application/json"),)
#: The head of a response of nothing but JSON, but for its length.
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
#: The one interim answer that every client expects.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Sent if the rest of a request is unread or unreadable: the next request on the connection cannot be found.
CLOSE: Headers = (("Connection", "close"),)


class Response(NamedTuple):
    """`headers` lack Content-Length: the sender adds the sum of the chunks.

    A response with a `stream` has no chunks but those, which are sent as they come, and Content-Length among its
    headers where their length is known; only the road sends such.
    """

    status: int
    headers: Headers = ()
    chunks: tuple[bytes | memoryview, ...] = ()
    close: Callable[[], None] | None = None
    stream: Iterator[bytes] | None = None


def json_response(status: int, value: Any, headers: Headers = ()) -> Response:
    """`value` as compact JSON."""
    return Response(status, JSON_CONTENT + headers, (orjson.dumps(value),))


def error_response(error: ShoalError, headers: Headers = ()) -> Response:
    """The body is exactly `{"error":"TEXT"}`; the status is the one of the error's class."""
    if error.retry_after_s:
        headers = (*headers, ("Retry-After", str(error.retry_after_s)))
    return error_json(error.http_status, str(error), headers)


def error_json(status: int, sentence: str, headers: Headers = ()) -> Response:
    """Like `error_response`, for the statuses that only HTTP has (404 for a path, 405)."""
    # A sentence may quote what a client or a model sent: lone surrogates have no UTF-8 and orjson refuses them.
    printable = sentence.encode("utf-8", "backslashreplace").decode("utf-8")
    return json_response(status, {"error": printable}, headers)


def body_cut_short(received: int, announced: int) -> InvalidArgumentError:
    """The error for a client that closed its side in the middle of a body."""
    return InvalidArgumentError(
        f"the request body ended after {received} of the {announced} bytes that Content-Length announced"
    )


def no_answer(timeout_s: float) -> UnavailableError:
    """The error for a request whose deadline has passed."""
    return UnavailableError(f"Request timeout expired: no answer within {timeout_s:g} s (--request-timeout-secs)")
