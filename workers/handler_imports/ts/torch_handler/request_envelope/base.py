"""The base class of all envelopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ts.context import Context


class BaseEnvelope:
    """A request and response format around a handler's function `handle_fn`."""

    def __init__(self, handle_fn: Callable[[Any, Context], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Context) -> Any:
        """The responses for a batch: it is parsed, handled, and the results are brought into this envelope's format."""
        self.context = context
        if data is None or _asks_for_description(context):
            return self._handle_fn(data, context)
        return self.format_output(self._handle_fn(self.parse_input(data), context))

    def parse_input(self, data: list[Any]) -> Any:
        """The data for the handler, from a batch of requests in this envelope's format."""
        raise NotImplementedError

    def format_output(self, data: Any) -> Any:
        """The responses in this envelope's format, from the handler's results."""
        raise NotImplementedError


def _asks_for_description(context: Context) -> bool:
    return bool(context.request_processor) and context.get_request_header(0, "describe") == "True"


def body_of(row: Any) -> Any:
    """The value of a request's key `data`, else of `body`; if the request is no dict, the request."""
    return row if not isinstance(row, dict) else row["data"] if row.get("data") is not None else row.get("body")


def json_of(row: Any) -> Any:
    """The value of a request's JSON, which was parsed already if the content type said JSON. Raises ValueError for
    invalid JSON."""
    import json

    body = body_of(row)
    return json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body


def list_of(row: Any, key: str) -> tuple[list[Any], dict[str, Any]]:
    """The list under `key` of a request's JSON object, and the object. Raises TypeError if there is no such list."""
    body = json_of(row)
    if not isinstance(body, dict) or not isinstance(body.get(key), list):
        raise TypeError(f'a request must be a JSON object with a list "{key}"')
    return body[key], body
