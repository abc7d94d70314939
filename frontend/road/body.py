"""The body of a request on the road, read from WSGI's input: exactly as long as announced, and never too long. Pure but
for reading that input."""

from typing import Any, ClassVar

from shoal.errors import InvalidArgumentError, TooLargeError, UnsupportedError
from shoal.frontend.response import body_cut_short

_NO_BODY = memoryview(b"")
Environ = dict[str, Any]


class BodyTooLongError(InvalidArgumentError):
    """A body is longer than the server accepts; `FLAG` raises the limit."""

    FLAG: ClassVar[str] = "--max-request-bytes"

    def __init__(self, nbytes: int, limit: int) -> None:
        super().__init__(
            f"the request body has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of {limit} "
            f"bytes. Use {self.FLAG} to increase the limit."
        )


class ControlBodyTooLongError(BodyTooLongError):
    """The body of a request other than an inference or a load is longer than such bodies may be."""

    FLAG = "--max-control-bytes"
    http_status, grpc_status = TooLargeError.http_status, TooLargeError.grpc_status


def has_body(environ: Environ) -> bool:
    """Whether a request announces a body."""
    return "HTTP_TRANSFER_ENCODING" in environ or environ.get("CONTENT_LENGTH", "") not in {"", "0"}


def read_body(
    environ: Environ, unreadable: tuple[type[Exception], ...], limit: int, too_long: type[BodyTooLongError]
) -> memoryview:
    """The whole body. Raises `too_long` if the body is longer than `limit`, another ShoalError if it is shorter than
    announced, broken, or announced in a way that this server refuses."""
    if not has_body(environ):
        return _NO_BODY
    announced = _announced_length(environ)
    if announced is not None and announced > limit:
        raise too_long(announced, limit)
    wanted = limit + 1 if announced is None else announced
    try:
        body = _read(environ["wsgi.input"], wanted)
    except unreadable as error:
        raise InvalidArgumentError(f"the request body cannot be read: {error}") from error
    if announced is None and len(body) > limit:
        raise too_long(len(body), limit)
    if announced is not None and len(body) < announced:
        raise body_cut_short(len(body), announced)
    return memoryview(body)


def _announced_length(environ: Environ) -> int | None:
    """The value of Content-Length; None for a chunked body. Raises ShoalError.

    A request with both Content-Length and chunks is refused, since it may be an attempt at request smuggling (RFC 9112,
    6.3).
    """
    length = environ.get("CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ:
        coding = environ["HTTP_TRANSFER_ENCODING"]
        if coding.strip().lower() != "chunked":
            raise UnsupportedError(f"Transfer-Encoding must be 'chunked' alone, got: {coding[:40]}")
        if length:
            raise InvalidArgumentError("the request has both Content-Length and Transfer-Encoding; send one of them")
        if not environ.get("wsgi.input_terminated"):
            raise InvalidArgumentError("this server cannot read a chunked request body; send Content-Length")
        return None
    if not (length.isascii() and length.isdigit()):
        raise InvalidArgumentError(f"Content-Length must be a number of bytes, got: {length[:40]}")
    return int(length.lstrip("0")[:20] or "0")  # int() refuses thousands of digits; twenty digits are past any limit


def _read(stream: Any, nbytes: int) -> bytes:
    data: bytes = stream.read(nbytes)
    if len(data) == nbytes or not data:
        return data
    pieces, missing = [data], nbytes - len(data)
    while missing and (data := stream.read(missing)):
        pieces.append(data)
        missing -= len(data)
    return b"".join(pieces)
