"""Handlers for metadata, configurations and statistics of the server and its models. Pure; run in front ends."""

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response, json_response
from shoal.star.known_server import collect, describe_model, describe_server


def server_metadata(call: HandlerCall) -> Response:
    """The response with the server's name, its version and the protocol's extensions."""
    return json_response(200, describe_server(call.state))


def model_metadata(call: HandlerCall) -> Response:
    """The response with a model's versions, inputs and outputs."""
    return json_response(200, describe_model(call.state, call.name, call.version))


def model_config(call: HandlerCall) -> Response:
    """The response with a model's configuration after normalisation and auto-complete; 64-bit integers are JSON
    numbers, as in Triton."""
    return json_response(200, call.state.models.lookup(call.name, call.version).config)


def all_statistics(call: HandlerCall) -> Response:
    """The response with the statistics of every READY model version."""
    return json_response(200, collect(call.state, "", None))


def model_statistics(call: HandlerCall) -> Response:
    """The response with the statistics of a model's READY versions, or of the version in the path."""
    return json_response(200, collect(call.state, call.name, call.version))
