"""TorchServe's request to scale a model: `PUT /models/M[/V]?min_worker=2&synchronous=true`. Runs on the road.

Parameters are read as TorchServe reads them (parameters.py). A worker in TorchServe is an instance here. A model of
TorchServe's store may have no workers; a model of a repository is scaled within the bounds that its configuration sets.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import error_response, pretty, refusal_of
from shoal.frontend.torchserve.parameters import boolean, integer
from shoal.frontend.v2.model_instances import number_of
from shoal.star.questions import Ask


@blocking
def scale_workers(call: HandlerCall) -> Response:
    """The response to a request to scale: 202 at once, or with `synchronous=true` 200 once the instances are there."""
    name, version, parameters = call.name, call.version, dict(parse_qsl(call.query))
    is_synchronous = boolean(parameters.get("synchronous", ""))
    wanted = version or parameters.get("model_version") or None
    try:
        least, most = _counts(parameters)
        _scale(call.ask, name, wanted, least, most, is_synchronous=is_synchronous)
    except ShoalError as error:
        return error_response(error)
    if not is_synchronous:
        return pretty(202, {"status": "Processing worker updates..."})
    of_version = f", version: {version}" if version else ""
    return pretty(200, {"status": f"Workers scaled to {least} for model: {name}{of_version}"})


def _scale(ask: Ask, name: str, version: str | None, least: int, most: int, *, is_synchronous: bool) -> None:
    arguments: dict[str, Any] = {"model": name, "version": version, "min_worker": least, "max_worker": most}
    try:
        ask("ts_scale", {**arguments, "synchronous": is_synchronous})
    except ShoalError as error:
        if refusal_of(error).kind != "ModelNotFoundException":
            raise
        # The model may be one of a repository, whose versions are numbers.
        try:
            ask("scale", {"model": name, "version": number_of(version), "count": least, "wait": is_synchronous})
        except NotFoundError:
            if version:  # it may be the version that is not found
                raise
            raise error from None


def _counts(parameters: Mapping[str, str]) -> tuple[int, int]:
    min_worker = integer(parameters.get("min_worker", ""), 1)
    max_worker = integer(parameters.get("max_worker", ""), min_worker)
    if min_worker < 0:
        raise InvalidArgumentError(f"min_worker must be a number of workers, got: {min_worker}")
    if max_worker < min_worker:
        raise InvalidArgumentError("max_worker cannot be less than min_worker.")
    return min_worker, max_worker
