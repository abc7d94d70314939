"""TorchServe's request to scale a model: `PUT /models/M[/V]?min_worker=2&synchronous=true`. Runs on the road.

Parameters are read as TorchServe reads them: one that should be a number and is not counts as absent, only `true` is
true. Responses and errors are JSON as TorchServe writes it, indented, with the status and the texts that its clients
know. A worker in TorchServe is an instance here.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import error_response, pretty
from shoal.frontend.torchserve.parameters import boolean, integer
from shoal.frontend.v2.model_instances import number_of
from shoal.star.questions import Ask


def scale_workers(ask: Ask, name: str, version: str | None, query: str) -> Response:
    """The response to a request to scale: 202 at once, or with `synchronous=true` 200 once the instances are there."""
    parameters = dict(parse_qsl(query))
    is_synchronous = boolean(parameters.get("synchronous", ""))
    try:
        count = _count(parameters)
        number = number_of(version or parameters.get("model_version"))
        ask("scale", {"model": name, "version": number, "count": count, "wait": is_synchronous})
    except ShoalError as error:
        return error_response(error)
    if not is_synchronous:
        return pretty(202, {"status": "Processing worker updates..."})
    of_version = f", version: {version}" if version else ""
    return pretty(200, {"status": f"Workers scaled to {count} for model: {name}{of_version}"})


def _count(parameters: Mapping[str, str]) -> int:
    min_worker = integer(parameters.get("min_worker", ""), 1)
    max_worker = integer(parameters.get("max_worker", ""), min_worker)
    if min_worker < 0:
        raise InvalidArgumentError(f"min_worker must be a number of workers, got: {min_worker}")
    if max_worker < min_worker:
        raise InvalidArgumentError("max_worker cannot be less than min_worker.")
    return min_worker
