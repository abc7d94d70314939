"""The statistics extension: the batcher's counters as JSON. Pure handlers, run in front-end processes."""

from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.star.statistics import collect


def all_statistics(state: ServerState) -> Response:
    """The figures of every READY model version."""
    return json_response(200, collect(state, "", None))


def model_statistics(state: ServerState, name: str, version: str | None) -> Response:
    """The figures of a model's READY versions, or of one of them."""
    return json_response(200, collect(state, name, version))
