"""A model's instances, and changes of their number: an extension that Triton does not have. Runs on the road; the
supervisor scales.

`GET` returns the state of each instance. `POST {"count": 2, "wait": true}` scales each version of the model, or the one
in the path, and returns the same: once all instances are there, or with `"wait": false` at once.
"""

import json
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.star.models import parse_version

#: The largest number that the message to the supervisor can hold; a model's own bound is far below.
_MAX_COUNT = 2**31 - 1
_MAX_SHOWN = 40


@blocking
def instances(call: HandlerCall) -> Response:
    """State, process, device, load and memory of each instance."""
    return json_response(200, call.ask("instances", {"model": call.name, "version": number_of(call.version)}))


@blocking
def batches(call: HandlerCall) -> Response:
    """Why the last batches of each version had the size they had, and what was learned and measured about larger
    ones."""
    return json_response(200, call.ask("explain", {"model": call.name, "version": number_of(call.version)}))


@blocking
def scale(call: HandlerCall) -> Response:
    """Start instances or retire some; the response is like that of `instances`. Raises InvalidArgumentError or
    InternalError for a malformed body."""
    name, number = call.name, number_of(call.version)
    request = read_json(call.body, call.state.http_max_input_size) if call.body else {}
    if type(request) is not dict or "count" not in request:
        raise _wrong(name, 'an object with the number of instances, like {"count": 2}', request)
    count, wait = request["count"], request.get("wait", True)
    if type(count) is not int or not 0 <= count <= _MAX_COUNT:
        raise _wrong(name, "'count' to be a number of instances", count)
    if type(wait) is not bool:
        raise _wrong(name, "'wait' to be true or false", wait)
    arguments = {"model": name, "version": number, "count": count, "wait": wait}
    return json_response(200, call.ask("scale", arguments))


def number_of(version: str | None) -> int | None:
    """The version in a path as a number, or None if the path has none. Raises InvalidArgumentError."""
    return parse_version(version) if version else None


def _wrong(name: str, expected: str, got: Any) -> InvalidArgumentError:
    shown = json.dumps(got, ensure_ascii=False)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return InvalidArgumentError(f"cannot scale model '{name}': expected {expected}, got: {shown}")
