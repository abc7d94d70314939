"""The head of an HTTP/1.1 request, as far as the lane is sure of it. Pure: bytes in, a Head or None out.

Rule: what is not plainly right is None, and the connection takes the road, where gunicorn's strict parser refuses it or
copes with it. So there is one judge of bad framing, and nothing here can smuggle: one Host, at most one Content-Length,
no Transfer-Encoding, no upgrade, no expectation, CRLF everywhere, printable ASCII only (RFC 9112, sections 2 to 7).
"""

import re
from typing import NamedTuple

from shoal.frontend.response import Response
from shoal.frontend.router import HTTP, RouteMatch, path_of
from shoal.frontend.v2.compression import preferred_encoding
from shoal.memo import memoized

#: gunicorn's limit for a line, and for the number of lines: anything longer is left to the road.
MAX_HEAD_BYTES = 8190
MAX_FIELDS = 100

# One pass of C over the whole head: a request line, then field lines without folding, then the empty line.
_HEAD = re.compile(
    rb"(?P<method>GET|POST|HEAD) (?P<target>/[!-~]*) HTTP/1\.1\r\n"
    rb"(?P<fields>(?:[!#$%&'*+\-.^`|~0-9A-Za-z]+:[\t -~]*\r\n)*)\r\n"  # no underscores: WSGI's, not a client's
)
#: Fields that change what a body or a connection is; each is a reason to take the road.
_ROAD_FIELDS = frozenset(
    {"transfer-encoding", "expect", "upgrade", "te", "trailer", "http2-settings", "proxy-connection"}
)
_SINGLE_FIELDS = frozenset(
    {"host", "content-length", "content-type", "inference-header-content-length", "content-encoding"}
)


class Head(NamedTuple):
    """A request head that the lane can serve."""

    found: RouteMatch | Response  # the handler, or the refusal that needs no body
    headers: dict[str, str]  # lower-case names; repeated fields are joined by a comma
    content_length: int
    json_length: int | None  # Inference-Header-Content-Length, where it is a plain number
    is_infer: bool
    keep_alive: bool
    path: str  # without its query
    raw: bytes  # as it came, to the empty line
    is_head: bool  # the method is HEAD: the response goes out without its body
    accepts_compression: bool


def parse_head(raw: bytes) -> Head | None:
    """The head in `raw`, which ends with the empty line; None where the road must see it."""
    return _parse(raw) if len(raw) <= MAX_HEAD_BYTES else None


@memoized("http_head", 512)  # clients send the same head again and again; at most 4 MiB of them
def _parse(raw: bytes) -> Head | None:
    match = _HEAD.fullmatch(raw)
    if match is None:
        return None
    headers = _fields(match["fields"])
    if headers is None or "host" not in headers or not headers.keys().isdisjoint(_ROAD_FIELDS):
        return None
    length = headers.get("content-length", "0")
    connection = headers.get("connection", "keep-alive").lower()
    if not _is_number(length) or connection not in ("keep-alive", "close"):
        return None
    if headers.get("content-encoding", "identity") != "identity":
        return None
    json_length = headers.get("inference-header-content-length")
    if json_length is not None and not _is_number(json_length):
        return None
    target = match["target"].decode("ascii")
    path = path_of(target)
    method = match["method"].decode("ascii")
    found = HTTP.resolve(method, target)
    if isinstance(found, RouteMatch) and found.is_blocking:
        return None
    return Head(
        found,
        headers,
        int(length),
        None if json_length is None else int(json_length),
        isinstance(found, RouteMatch) and found.is_inference,
        connection == "keep-alive",
        path,
        raw,
        method == "HEAD",
        preferred_encoding(headers.get("accept-encoding", "")) != "identity",
    )


def _fields(lines: bytes) -> dict[str, str] | None:
    """Field names in lower case → values; None for too many, or for one that must stand alone and does not."""
    headers: dict[str, str] = {}
    split = lines.decode("ascii").split("\r\n")[:-1]
    if len(split) > MAX_FIELDS:
        return None
    for line in split:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE_FIELDS or name == "connection":
            return None
        else:
            headers[name] += "," + value
    return headers


def _is_number(text: str) -> bool:
    return text.isdigit() and len(text) <= 15
