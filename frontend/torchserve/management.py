"""TorchServe's request to scale a model: `PUT /models/M[/V]?min_worker=2&synchronous=true`. Runs on the road.

Parameters are read as TorchServe reads them: one that should be a number and is not counts as absent, only `true` is
true. Responses and errors are JSON as TorchServe writes it, indented, with the status and the texts that its clients
know. A worker in TorchServe is an instance here.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.response import JSON_CONTENT, Response
from shoal.frontend.v2.model_instances import number_of
from shoal.star.questions import Ask

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
#: The member `type` of an error, by its status.
_TYPES = {400: "BadRequestException", 404: "ModelNotFoundException", 503: "ServiceUnavailableException"}


def scale_workers(ask: Ask, name: str, version: str | None, query: str) -> Response:
    """The response to a request to scale: 202 at once, or with `synchronous=true` 200 once the instances are there."""
    parameters = dict(parse_qsl(query))
    is_synchronous = parameters.get("synchronous", "").lower() == "true"
    try:
        count = _count(parameters)
        number = number_of(version or parameters.get("model_version"))
        ask("scale", {"model": name, "version": number, "count": count, "wait": is_synchronous})
    except ShoalError as error:
        return _error(error)
    if not is_synchronous:
        return _pretty(202, {"status": "Processing worker updates..."})
    of_version = f", version: {version}" if version else ""
    return _pretty(200, {"status": f"Workers scaled to {count} for model: {name}{of_version}"})


def _count(parameters: Mapping[str, str]) -> int:
    min_worker = _integer(parameters.get("min_worker", ""), 1)
    max_worker = _integer(parameters.get("max_worker", ""), min_worker)
    if min_worker < 0:
        raise InvalidArgumentError(f"min_worker must be a number of workers, got: {min_worker}")
    if max_worker < min_worker:
        raise InvalidArgumentError("max_worker cannot be less than min_worker.")
    return min_worker


def _integer(text: str, default: int) -> int:
    return int(text) if _INTEGER.fullmatch(text) else default


def _error(error: ShoalError) -> Response:
    status = error.http_status
    kind = _TYPES.get(status, "InternalServerException")
    return _pretty(status, {"code": status, "type": kind, "message": str(error)})


def _pretty(status: int, value: dict[str, Any]) -> Response:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(status, JSON_CONTENT, (text,))
