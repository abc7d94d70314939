"""The envelope `body`: each request's content alone, without the key `data` or `body`."""

from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, body_of


class BodyEnvelope(BaseEnvelope):
    """Gives the handler a list with each request's content, its value of `data` or `body`."""

    def parse_input(self, data: list[Any]) -> list[Any]:
        return [body_of(row) for row in data]

    def format_output(self, data: Any) -> Any:
        return data
