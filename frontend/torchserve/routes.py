"""The routes of TorchServe's listeners: of each API, and of listeners that several share. Pure."""

from collections.abc import Sequence

from shoal.frontend.call import HandlerCall, Route
from shoal.frontend.response import Response
from shoal.frontend.router import Router
from shoal.frontend.torchserve.api_description import description
from shoal.frontend.torchserve.errors import METHOD_NOT_ALLOWED, RESOURCE_NOT_FOUND, error_response, refusal_response
from shoal.frontend.torchserve.inference_api import INFERENCE_ROUTES, any_method
from shoal.frontend.torchserve.management_api import MANAGEMENT_ROUTES
from shoal.frontend.torchserve.metrics_api import METRICS_ROUTES
from shoal.torchserve_settings import TORCHSERVE_VERSION

_ROUTES: dict[str, Sequence[Route]] = {
    "inference": INFERENCE_ROUTES,
    "management": MANAGEMENT_ROUTES,
    "metrics": METRICS_ROUTES,
}


def router_of(apis: Sequence[str]) -> Router:
    """The router of a listener that serves these APIs; of two that have one path, the first one's is served."""
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
    )
