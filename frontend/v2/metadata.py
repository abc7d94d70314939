"""Metadata of the server and of a model, and a model's configuration. Pure handlers, run in front-end processes."""

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response, json_response
from shoal.star.metadata import describe_model, describe_server


def server_metadata(call: HandlerCall) -> Response:
    """Name, protocol version and extensions."""
    return json_response(200, describe_server(call.state))


def model_metadata(call: HandlerCall) -> Response:
    """A model's tensors."""
    return json_response(200, describe_model(call.state, call.name, call.version))


def model_config(call: HandlerCall) -> Response:
    """The configuration after normalisation and auto-complete; 64-bit integers are JSON numbers, as in Triton."""
    return json_response(200, call.state.models.lookup(call.name, call.version).config)
