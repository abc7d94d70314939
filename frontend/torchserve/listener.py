"""A listener of TorchServe's: its routes, the headers of the responses, and the admission of requests on the road.
Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from shoal.errors import ShoalError
from shoal.frontend.access.tokens import REFUSAL, TOKEN_REFUSAL, Tokens
from shoal.frontend.call import HandlerCall, Route
from shoal.frontend.response import CLOSE, Headers, Response
from shoal.frontend.road.body import BodyTooLongError
from shoal.frontend.router import RouteMatch, Router
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.api_description import description
from shoal.frontend.torchserve.errors import METHOD_NOT_ALLOWED, RESOURCE_NOT_FOUND, error_response, refusal_response
from shoal.frontend.torchserve.inference_api import INFERENCE_ROUTES, any_method
from shoal.frontend.torchserve.management_api import MANAGEMENT_ROUTES
from shoal.frontend.torchserve.metrics_api import METRICS_ROUTES, machine_cpu
from shoal.frontend.torchserve.predictions import new_id
from shoal.torchserve_settings import TORCHSERVE_VERSION, TorchServeSettings

_ROUTES: dict[str, Sequence[Route]] = {
    "inference": INFERENCE_ROUTES,
    "management": MANAGEMENT_ROUTES,
    "metrics": METRICS_ROUTES,
}


def router_of(apis: Sequence[str]) -> Router:
    """The router of a listener that serves these APIs; if two APIs have the same path, the first one's is served."""
    routes = [route for api in apis for route in _ROUTES[api]]
    document = description("TorchServe APIs", TORCHSERVE_VERSION, routes)

    def describe(_call: HandlerCall) -> Response:
        return document

    described = (
        Route("/", {"OPTIONS": describe}, "metadata"),
        Route("/api-description", {**any_method(describe), "OPTIONS": describe}, "metadata"),
    )
    return Router(
        "torchserve",
        [*described, *routes],
        lambda _path, methods: refusal_response(METHOD_NOT_ALLOWED if methods else RESOURCE_NOT_FOUND),
        refuse=error_response,
        ignores_last_slashes=True,  # as in TorchServe, which splits a path at its slashes
    )


_NO_CACHE: Headers = (
    ("Pragma", "no-cache"),
    ("Cache-Control", "no-cache; no-store, must-revalidate, private"),
    ("Expires", "Thu, 01 Jan 1970 00:00:00 UTC"),
)


def common_headers(settings: TorchServeSettings) -> Headers:
    """The header fields of every response: against caches, and for CORS as configured."""
    cors = (
        ("Access-Control-Allow-Origin", settings.cors_allowed_origin),
        ("Access-Control-Allow-Methods", settings.cors_allowed_methods),
        ("Access-Control-Allow-Headers", settings.cors_allowed_headers),
    )
    if not settings.cors_allowed_origin:
        return _NO_CACHE
    return (*_NO_CACHE, *((name, value) for name, value in cors if value))


def with_common_headers(response: Response, request_id: str, common: Headers) -> Response:
    """A response with its request's id, and those of the common fields that it lacks."""
    if response.status == 413 and not response.chunks:
        return response  # TorchServe refuses too large a body while decoding, before it adds any header field
    has = {name.lower() for name, _ in response.headers}
    added = tuple(field for field in (("x-request-id", request_id), *common) if field[0].lower() not in has)
    return response._replace(headers=(*added, *response.headers))


def closing(response: Response) -> Response:
    """The response, which ends the connection if it is an error, as in TorchServe."""
    if response.status < 400 or CLOSE[0] in response.headers:
        return response
    return response._replace(headers=response.headers + CLOSE)


def content_length(headers: Mapping[str, str]) -> int:
    """The announced length of a body; 0 if none is announced, or the announcement is no number."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


#: The response to a request whose body is too long. It has no body, as in TorchServe.
TOO_LONG = Response(413)


class RoadEndpoint:
    """A listener that serves some of TorchServe's APIs."""

    def __init__(self, state: ServerState, apis: Sequence[str], count: Callable[[int], None]) -> None:
        """`count` counts a response by its status."""
        self._count = count
        self._routes = router_of(apis)
        self._common = common_headers(state.torchserve)
        self._has_cors = bool(state.torchserve.cors_allowed_origin)
        self._tokens = Tokens(state.torchserve.token_file)
        self._max_request_size = state.torchserve.max_request_size
        if "metrics" in apis and state.torchserve.system_metrics:
            machine_cpu()  # the first page shows the utilization since now

    def admit(self, state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> RouteMatch | Response:
        """The handler for a request, or its refusal; a body that is too long is refused before anything else."""
        if content_length(headers) > self._max_request_size:
            return TOO_LONG
        if method == "OPTIONS" and self._has_cors and "access-control-request-method" in headers:
            return Response(200)  # a browser's preflight, which has no token; `finish` adds the fields for CORS
        group = self._routes.group_of(target)
        if not self._tokens.admits(group, headers, datetime.now().astimezone()):
            return error_response(TOKEN_REFUSAL if group == "token" else REFUSAL)
        return self._routes.admit(state, method, target, headers)

    def refuse(self, error: ShoalError) -> Response:
        return TOO_LONG if isinstance(error, BodyTooLongError) else error_response(error)

    def finish(self, response: Response) -> Response:
        """The response with the header fields of every response; an error ends the connection."""
        self._count(response.status)
        return closing(with_common_headers(response, new_id(), self._common))
