"""The statistics extension: the batcher's counters as JSON. Pure handlers, run in front-end processes."""

from shoal.frontend.call import HandlerCall
from shoal.frontend.response import Response, json_response
from shoal.star.statistics import collect


def all_statistics(call: HandlerCall) -> Response:
    """The figures of every READY model version."""
    return json_response(200, collect(call.state, "", None))


def model_statistics(call: HandlerCall) -> Response:
    """The figures of a model's READY versions, or of one of them."""
    return json_response(200, collect(call.state, call.name, call.version))
