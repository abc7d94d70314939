"""The head of an HTTP/1.1 request, if it is one that the lane may serve. Pure: bytes in, a Head or None out.

Rule: a head that is not plainly right becomes None, and the connection takes the road, where gunicorn's strict parser
refuses or accepts the head. A body of doubtful length is thus read by one parser alone, and this module's parser cannot
be used to smuggle a request in. It accepts one Host, at most one Content-Length, no Transfer-Encoding, no upgrade, no
expectation, CRLF everywhere, printable ASCII only (RFC 9112, sections 2 to 7).
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shoal.frontend.access.authorisation import CREDENTIALS
from shoal.frontend.response import Response
from shoal.frontend.router import HTTP, RouteMatch, path_of
from shoal.frontend.v2.compression import preferred_encoding
from shoal.memo import memoized
from shoal.timing import REQUEST_HEADER, wants_timing

#: gunicorn's limit for one line, here for the whole head (a longer head is left to the road), and its limit for the
#: number of lines.
MAX_HEAD_BYTES = 8190
MAX_FIELDS = 100
#: The most bytes of a line whose parsed form is kept, and of a head whose framing is kept. Longer lines (tokens,
#: cookies), and the framing of longer heads, are parsed each time, so that a client cannot fill the memos with
#: megabytes (ours).
_MAX_KEPT_LINE, MAX_KEPT_HEAD = 256, 1024

_REQUEST_LINE = re.compile(rb"(GET|POST|HEAD) (/[!-~]*) HTTP/1\.1")
#: A field's name and value. A name with an underscore is left to the road: WSGI would take it for a name with a dash.
_FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^`|~0-9A-Za-z]+):([\t -~]*)")
#: Fields that change the framing of a body or the protocol of a connection; a head with one of them takes the road.
ROAD_FIELDS = frozenset(
    {"transfer-encoding", "expect", "upgrade", "te", "trailer", "http2-settings", "proxy-connection"}
)
SINGLE_FIELDS = frozenset(
    {"host", "content-length", "content-type", "inference-header-content-length", "content-encoding"}
)
#: Fields whose values determine how a lane handles a request. (Values of other fields may be forwarded to the model, be
#: the secret of a restricted API, or name a trace.)
MEANINGFUL_FIELDS = ROAD_FIELDS | SINGLE_FIELDS | CREDENTIALS | {"connection", "accept-encoding", REQUEST_HEADER}
#: All bytes that the value of a field may have.
VALUE_BYTES: Final = bytes([0x09, *range(0x20, 0x7F)])


class Head(NamedTuple):
    """The head of a request that the lane can serve."""

    found: RouteMatch | Response  # the handler, or a refusal, which needs no body
    headers: dict[str, str]  # lower-case names; repeated fields are joined by a comma
    content_length: int
    json_length: int | None  # Inference-Header-Content-Length, if there is one
    is_infer: bool
    keep_alive: bool
    path: str  # the target without its query
    raw: bytes  # the received bytes, up to the empty line
    is_head: bool  # the method is HEAD: the response goes out without its body
    accepts_compression: bool
    wants_timing: bool = False  # the client asks for the times of its request


_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")


def has_bare_line_feed(data: bytes) -> bool:
    """Whether a line of an unfinished head ends without a carriage return, which no line may (RFC 9112, 2.2)."""
    return b"\n" in data and _BARE_LINE_FEED.search(data) is not None


def parse_head(raw: bytes) -> Head | None:
    """The head in `raw`, which ends with the empty line; None if the road must handle the request."""
    return _parse(raw) if len(raw) <= MAX_HEAD_BYTES else None


@memoized("http_head", 512)  # clients send the same head again and again; 9 MiB of parsed heads at most
def _parse(raw: bytes) -> Head | None:
    # The lines are memoized, too: most lines of a new head are known, since a new value, such as a trace's, changes one
    # line only.
    first, *lines = raw.split(b"\r\n")
    line = (_request_line if len(first) <= _MAX_KEPT_LINE else _request_line.__wrapped__)(first)
    if line is None or lines[-2:] != [b"", b""]:
        return None
    headers = fields_of(lines[:-2], _field_line)
    if headers is None or "host" not in headers or not headers.keys().isdisjoint(ROAD_FIELDS):
        return None
    find = headers.get
    framing_of = framing if len(raw) <= MAX_KEPT_HEAD else framing.__wrapped__
    framed = framing_of(
        find("content-length", "0"),
        find("inference-header-content-length"),
        find("connection", "keep-alive"),
        find("content-encoding", "identity"),
        find("accept-encoding", ""),
    )
    if framed is None:
        return None
    content_length, json_length, keep_alive, accepts_compression = framed
    found, path, is_infer, is_head = line
    return Head(
        found, headers, content_length, json_length, is_infer, keep_alive, path, raw, is_head, accepts_compression,
        REQUEST_HEADER in headers and wants_timing(headers),
    )  # fmt: skip


@memoized("http_request_line", 512)
def _request_line(line: bytes) -> tuple[RouteMatch | Response, str, bool, bool] | None:
    """The handler or the refusal, the path, whether the request is an inference, and whether its method is HEAD."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return None
    method, target = match[1], match[2].decode("ascii")
    found = HTTP.resolve(method.decode("ascii"), target)
    if isinstance(found, RouteMatch) and found.is_blocking:
        return None
    return found, path_of(target), isinstance(found, RouteMatch) and found.is_inference, method == b"HEAD"


@memoized("http_framing", 512)
def framing(
    length: str, json_length: str | None, connection: str, content_encoding: str, accept_encoding: str
) -> tuple[int, int | None, bool, bool] | None:
    """Content length, JSON length, whether the connection is kept, and whether compression is accepted."""
    if not _is_number(length) or connection.lower() not in ("keep-alive", "close"):
        return None
    if content_encoding != "identity" or not (json_length is None or _is_number(json_length)):
        return None
    accepts_compression = preferred_encoding(accept_encoding) != "identity"
    json_nbytes = None if json_length is None else int(json_length)
    return int(length), json_nbytes, connection.lower() == "keep-alive", accepts_compression


@memoized("http_field", 1024)
def _field(line: bytes) -> tuple[str, str] | None:
    return field_of(_FIELD_LINE.fullmatch(line))


def _field_line(line: bytes) -> tuple[str, str] | None:
    return (_field if len(line) <= _MAX_KEPT_LINE else _field.__wrapped__)(line)


def field_of(match: re.Match[bytes] | None) -> tuple[str, str] | None:
    """Name in lower case and value of a field, from the two groups of a line's match; None if the line did not
    match."""
    return None if match is None else (match[1].decode("ascii").lower(), match[2].decode("ascii").strip(" \t"))


def fields_of(lines: Sequence[bytes], read_line: Callable[[bytes], tuple[str, str] | None]) -> dict[str, str] | None:
    """Values by field names in lower case; None for too many fields, for a repeated field that must be single, or for a
    line that `read_line` finds malformed."""
    headers: dict[str, str] = {}
    if len(lines) > MAX_FIELDS:
        return None
    for line in lines:
        field = read_line(line)
        if field is None:
            return None
        name, value = field
        if name not in headers:
            headers[name] = value
        elif name in SINGLE_FIELDS or name == "connection":
            return None
        else:
            headers[name] += "," + value
    return headers


def _is_number(text: str) -> bool:
    return text.isdigit() and len(text) <= 15
