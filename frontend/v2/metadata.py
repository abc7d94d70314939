"""Metadata of the server and of a model, and a model's configuration. Pure handlers, run in front-end processes."""

from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.star.metadata import describe_model, describe_server


def server_metadata(state: ServerState) -> Response:
    """Name, protocol version and extensions."""
    return json_response(200, describe_server(state))


def model_metadata(state: ServerState, name: str, version: str | None) -> Response:
    """A model's tensors."""
    return json_response(200, describe_model(state, name, version))


def model_config(state: ServerState, name: str, version: str | None) -> Response:
    """The configuration after normalisation and auto-complete; 64-bit integers are JSON numbers, as in Triton."""
    return json_response(200, state.models.lookup(name, version).config)
