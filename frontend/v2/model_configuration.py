"""The model configuration extension: the finished configuration as JSON. A pure handler, run in front-end processes."""

from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState


def model_config(state: ServerState, name: str, version: str | None) -> Response:
    """The configuration after normalisation and auto-complete; 64-bit integers are JSON numbers, as in Triton."""
    return json_response(200, state.models.lookup(name, version).config)
