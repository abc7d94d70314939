"""Vertex AI's endpoint: a health route, and a predict route for the default model, or for a redirect into Triton's API.

The environment determines the routes. The header X-Vertex-Ai-Triton-Redirect of a prediction names another target, like
`v2/models/M/infer`; every request to the predict route is a POST. Binary responses have the form of Triton's API,
binary requests have the length of their JSON in the Content-Type. Pure; runs on the road.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

from shoal.frontend.clouds.binary_content import asked_by_content_type
from shoal.frontend.response import Response, error_json, not_allowed
from shoal.frontend.road.inference import infer
from shoal.frontend.router import HTTP, Admit, RouteMatch, path_of
from shoal.frontend.state import ServerState

REDIRECT_HEADER = "x-vertex-ai-triton-redirect"
BINARY_CONTENT = "application/vnd.vertex-ai-triton.binary+json;json-header-size="

_UNMATCHED = Response(400)
_MODEL = "/v2/models/[^/]+(?:/versions/[0-9]+)?"
_REPOSITORY = "/v2/repository(?:/[^/]+)?"
_REGION = "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?"
#: The only paths that a redirect may lead to, beside that of the metrics, and their methods.
_REDIRECTS = (
    (re.compile(f"/v2|/v2/health/(?:live|ready)|/v2/models/stats|{_MODEL}(?:/(?:ready|config|stats))?"), "GET"),
    (re.compile(f"{_REGION}/status"), "GET"),
    (re.compile(f"{_MODEL}/infer|{_REPOSITORY}/index"), "POST"),
)
#: Paths of requests that would change the server: a client that may predict need not have the right to do that.
_FORBIDDEN = re.compile(f"{_REPOSITORY}/models/[^/]+/(?:un)?load|{_REGION}/(?:un)?register")

_infer = asked_by_content_type(infer, BINARY_CONTENT)


def admit_vertex_ai(
    state: ServerState, method: str, target: str, headers: Mapping[str, str], *, metrics: Admit
) -> RouteMatch | Response:
    """The handler for a request, or the response that refuses the request. `metrics` admits requests for the metrics
    endpoint."""
    path = path_of(target)
    if path == state.vertex_ai_health_route:
        return HTTP.admit(state, method, "/v2/health/ready", headers)
    if path != state.vertex_ai_predict_route:
        return _UNMATCHED
    if method != "POST":
        return not_allowed(("POST",))
    default = f"v2/models/{quote(state.vertex_ai_default_model, safe='')}/infer"
    redirect = headers.get(REDIRECT_HEADER, default)
    if redirect == "metrics":
        return metrics(state, "GET", "/metrics", headers)
    return _redirected(state, f"/{redirect}", headers)


def _redirected(state: ServerState, path: str, headers: Mapping[str, str]) -> RouteMatch | Response:
    if _FORBIDDEN.fullmatch(path):
        return error_json(403, f"'{path[1:]}' is not for redirects of Vertex AI; ask Triton's HTTP API for it")
    for pattern, method in _REDIRECTS:
        if pattern.fullmatch(path):
            found = HTTP.admit(state, method, path, headers)
            if isinstance(found, RouteMatch) and found.is_inference:
                return found._replace(handler=_infer)
            return found
    return _UNMATCHED
