"""The envelope `json`: {"instances": […]} in, {"predictions": […]} out, the format of TensorFlow Serving."""

from __future__ import annotations

import base64
import json
from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, list_of


class JSONEnvelope(BaseEnvelope):
    """Joins the instances of all requests into one list for the handler, and splits the results by request."""

    def __init__(self, handle_fn: Any) -> None:
        super().__init__(handle_fn)
        self._lengths: list[int] = []

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The instances of a batch; {"b64": …} becomes bytes. Raises TypeError for a request without instances."""
        self._lengths = []
        instances: list[Any] = []
        for row in data:
            own = [_decoded(instance) for instance in list_of(row, "instances")[0]]
            self._lengths.append(len(own))
            instances += own
        return instances

    def format_output(self, data: Any) -> list[str]:
        """The predictions of each request as JSON."""
        results, start = [], 0
        for length in self._lengths:
            text = json.dumps({"predictions": list(data[start : start + length])}, separators=(",", ":"))
            results.append(text)
            start += length
        return results


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, dict):
        return instance
    if set(instance) == {"b64"}:
        return base64.b64decode(instance["b64"])
    return {key: _decoded(value) for key, value in instance.items()}
