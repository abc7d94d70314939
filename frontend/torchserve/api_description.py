"""The OpenAPI document of a listener of TorchServe's, made from the listener's table of routes: the paths, their
parameters and methods, and the form of errors. Pure.

    /predictions/(?P<name>[^/]+)(?:/(?P<version>[^/]+)(?:/.*)?)?
        →  /predictions/{model_name}, /predictions/{model_name}/{model_version}
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.frontend.call import Route
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import pretty

_GROUPS = {"name": "{model_name}", "version": "{model_version}"}
_GROUP = re.compile(r"\(\?P<(name|version)>\[\^/:?\]\+\)")
_REST = "(?:/.*)?"
_OPTIONAL = re.compile(r"\(\?:([^()]*)\)\?")
_PARAMETER = re.compile(r"\{(\w+)\}")
#: The description of TorchServe's error responses.
_ERROR = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {"code": {"type": "integer"}, "type": {"type": "string"}, "message": {"type": "string"}},
}


def description(title: str, version: str, routes: Sequence[Route]) -> Response:
    """The document of these routes. If two routes have the same path, the first is described."""
    paths: dict[str, Any] = {}
    for route in routes:
        for path in paths_of(route.pattern):
            if path not in paths:
                paths[path] = _operations(path, route.methods)
    return pretty(
        200,
        {
            "openapi": "3.0.1",
            "info": {"title": title, "version": version},
            "paths": paths,
            "components": {"schemas": {"Error": _ERROR}},
        },
    )


def paths_of(pattern: str) -> Iterator[str]:
    """The paths that a route's pattern stands for, in OpenAPI's form: without the optional part, and with it."""
    path = _GROUP.sub(lambda found: _GROUPS[found[1]], pattern.replace(_REST, ""))
    shorter = _OPTIONAL.sub("", path)
    yield shorter
    if shorter != path:
        yield _OPTIONAL.sub(lambda found: found[1], path)


def _operations(path: str, methods: Iterable[str]) -> dict[str, Any]:
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses = {"200": {"description": "OK"}, "default": {"description": "An error", "content": error}}
    name = re.sub(r"\W+", "_", path).strip("_") or "api"
    return {
        method.lower(): {"operationId": f"{method.lower()}_{name}", "parameters": parameters, "responses": responses}
        for method in methods
    }
