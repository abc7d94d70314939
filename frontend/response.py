"""A handler's response: status, headers, chunks; and the two usual kinds of response, JSON and errors.

Pure: does not depend on Flask, gunicorn or sockets. A chunk may be a view of a worker's block, so the sender of the
response must call `close` exactly once: after the last chunk has been sent, or when the sender gives the rest up.
Front-end processes only.
"""

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from shoal.errors import InvalidArgumentError, ShoalError, UnauthenticatedError

Headers = tuple[tuple[str, str], ...]

_PHRASES: dict[int, str] = {each: each.phrase for each in HTTPStatus}

#: Statuses whose responses end with their heads (RFC 9112, section 6.3): a body would be read as the next response.
BODILESS = (204, 304)
JSON_CONTENT: Headers = (("Content-Type", "application/json"),)
#: The head of a response whose body is JSON alone; the body's length is to be filled in.
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
#: The interim response to `Expect: 100-continue`: the client may send the body.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Closes the connection after a response: the request was not read to its end, so the next one cannot be found.
CLOSE: Headers = (("Connection", "close"),)
#: For a response with the status 401, which must name the expected credentials (RFC 9110, section 11.6.1).
CHALLENGE: Headers = (("WWW-Authenticate", "Bearer"),)


class Response(NamedTuple):
    """A response to send. `headers` lack Content-Length: the sender adds it, as the sum of the chunks.

    If there is a `stream`, the body is its items and `chunks` is empty; the items are sent as they come, and
    Content-Length is among the headers if it is known. Only the road sends such responses.
    """

    status: int
    headers: Headers = ()
    chunks: tuple[bytes | memoryview, ...] = ()
    close: Callable[[], None] | None = None
    stream: Iterator[bytes] | None = None
    phrase: str | None = None  # the reason phrase; None: the usual one of the status


def response_head(response: Response) -> bytes:
    """A response's status line and header fields, with Content-Length unless a response of its status has no body."""
    begun = status_and_fields(response.status, response.headers, response.phrase)
    if response.status not in BODILESS:
        begun = f"{begun}Content-Length: {sum([len(chunk) for chunk in response.chunks])}\r\n"
    return f"{begun}\r\n".encode("latin-1")


def status_and_fields(status: int, headers: Headers, phrase: str | None = None) -> str:
    """A status line and header fields, without the empty line behind them."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    phrase = _PHRASES.get(status, "") if phrase is None else phrase
    return f"HTTP/1.1 {status} {phrase}\r\n{fields}"


def as_bytes(response: Response) -> bytes:
    """The whole of a response that is no stream, as it is sent."""
    return b"".join([response_head(response), *response.chunks])


def json_response(status: int, value: Any, headers: Headers = ()) -> Response:
    """A response whose body is `value` as compact JSON."""
    return Response(status, JSON_CONTENT + headers, (orjson.dumps(value),))


def error_response(error: ShoalError, headers: Headers = ()) -> Response:
    """A response for an error: the body is exactly `{"error":"TEXT"}`, the status is the error class's."""
    return error_json(error.http_status, str(error), headers + headers_of(error))


def headers_of(error: ShoalError) -> Headers:
    """Header fields for an error's response; the caller writes the body."""
    retry: Headers = (("Retry-After", str(error.retry_after_s)),) if error.retry_after_s else ()
    return retry + CHALLENGE if isinstance(error, UnauthenticatedError) else retry


def error_json(status: int, sentence: str, headers: Headers = ()) -> Response:
    """A response for an error without a ShoalError class (404 for a path, 405), in the form of `error_response`."""
    return json_response(status, {"error": encodable(sentence)}, headers)


def not_allowed(methods: Sequence[str]) -> Response:
    """The response 405 for a method that the path does not support; `methods` are those it does."""
    return error_json(405, "Method Not Allowed", (("Allow", ", ".join(methods)),))


def encodable(text: str) -> str:
    """A text for JSON that may quote what a client or a model sent. Lone surrogates, which have no UTF-8 and which
    orjson refuses, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def body_cut_short(received: int, announced: int) -> InvalidArgumentError:
    """The error for a client that closed its side of the connection in the middle of a body."""
    return InvalidArgumentError(
        f"the request body ended after {received} of the {announced} bytes that Content-Length announced"
    )
