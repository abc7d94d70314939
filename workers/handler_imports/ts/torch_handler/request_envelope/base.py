"""The envelope that others derive from."""

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
        """The handler's results for the parsed batch, in this format."""
        self.context = context
        if data is None or _asks_for_description(context):
            return self._handle_fn(data, context)
        return self.format_output(self._handle_fn(self.parse_input(data), context))

    def parse_input(self, data: list[Any]) -> Any:
        """The handler's data from a batch of requests."""
        raise NotImplementedError

    def format_output(self, data: Any) -> Any:
        """The responses from a handler's results."""
        raise NotImplementedError


def _asks_for_description(context: Context) -> bool:
    return bool(context.request_processor) and context.get_request_header(0, "describe") == "True"


def body_of(row: Any) -> Any:
    """The value of a request's key `data`, else of `body`; a request that is no dict itself."""
    return row if not isinstance(row, dict) else row["data"] if row.get("data") is not None else row.get("body")


def json_of(row: Any) -> Any:
    """A request's JSON, parsed unless its content type has had it parsed already. Raises ValueError."""
    import json

    body = body_of(row)
    return json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body


def list_of(row: Any, key: str) -> tuple[list[Any], dict[str, Any]]:
    """The list under `key` of a request's JSON object, and the object. Raises TypeError if there is none."""
    body = json_of(row)
    if not isinstance(body, dict) or not isinstance(body.get(key), list):
        raise TypeError(f'a request must be a JSON object with a list "{key}"')
    return body[key], body
