"""The envelope `kserve`: KServe's first protocol, {"instances": […]} in, {"predictions": …} out."""

from __future__ import annotations

from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, list_of


class KServeEnvelope(BaseEnvelope):
    """Gives the handler the instances of the first request; there is one answer for the whole batch."""

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The instances of the first request. Raises TypeError if it has none."""
        return list_of(data[0], "instances")[0]

    def format_output(self, data: Any) -> list[Any]:
        """The results under `predictions`, or under `explanations` if the client has asked for an explanation."""
        explains = self.context.get_request_header(0, "explain") == "True"
        return [{"explanations" if explains else "predictions": data}]
