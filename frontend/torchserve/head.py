"""The head of a request to a listener of TorchServe's, as far as the lane is sure of it. Pure: bytes in, a Head or None
out.

The rule is that of Triton's listener (frontend/http/http_head.py): any head that is not plainly right takes the road.
But here any method may ask for a prediction, and names of fields may have underscores, as those of sequences have.
"""

import re

from shoal.frontend.http.http_head import MAX_HEAD_BYTES, MAX_KEPT_HEAD, ROAD_FIELDS, Head, field_of, fields_of
from shoal.frontend.http.http_head import framing as framing_of
from shoal.frontend.response import Response
from shoal.frontend.router import Router, path_of
from shoal.frontend.torchserve.inference_api import PREDICTIONS
from shoal.memo import Memo
from shoal.timing import wants_timing

_MAX_HEADS = 512
_REQUEST_LINE = re.compile(rb"(GET|POST|PUT|DELETE|PATCH|HEAD) (/[!-~]*) HTTP/1\.1")
_FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t -~]*)")


class HeadParser:
    """Parses heads for the routes of one listener."""

    def __init__(self, routes: Router) -> None:
        self._routes = routes
        # Changed by parse: parsed heads, by their bytes.
        self._known = Memo[bytes, Head]("torchserve_head", _MAX_HEADS)

    def parse(self, raw: bytes) -> Head | None:
        """The head in `raw`, which ends with the empty line; None if the road must handle the request."""
        known = self._known.entries.get(raw)
        if known is not None:
            return known
        head = self._parse(raw) if len(raw) <= MAX_HEAD_BYTES else None
        if head is not None and len(raw) <= MAX_KEPT_HEAD:
            self._known.keep(raw, head)
        return head

    def _parse(self, raw: bytes) -> Head | None:
        first, *lines = raw.split(b"\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        headers = fields_of(lines[:-2], _field_line) if lines[-2:] == [b"", b""] else None
        if line is None or headers is None or "host" not in headers or not headers.keys().isdisjoint(ROAD_FIELDS):
            return None
        method, target = line[1].decode("ascii"), line[2].decode("ascii")
        found = self._routes.resolve(method, target)
        is_prediction = False
        if not isinstance(found, Response):
            if found.is_blocking:
                return None
            is_prediction = found.handler in PREDICTIONS
        # Responses of models are never compressed, so the encodings that a client accepts do not matter.
        framing = framing_of.__wrapped__(
            headers.get("content-length", "0"),
            None,
            headers.get("connection", "keep-alive"),
            headers.get("content-encoding", "identity"),
            "",
        )
        if framing is None:
            return None
        length, _, keep_alive, _ = framing
        is_head = method == "HEAD"
        path, asks = path_of(target), wants_timing(headers)
        return Head(found, headers, length, None, is_prediction, keep_alive, path, raw, is_head, False, asks)


def _field_line(line: bytes) -> tuple[str, str] | None:
    return field_of(_FIELD_LINE.fullmatch(line))
