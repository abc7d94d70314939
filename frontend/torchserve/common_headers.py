"""The header fields that each response of TorchServe's has. Pure; front-end processes."""

from collections.abc import Mapping

from shoal.frontend.response import CLOSE, Headers, Response
from shoal.torchserve_settings import TorchServeSettings

_NO_CACHE: Headers = (
    ("Pragma", "no-cache"),
    ("Cache-Control", "no-cache; no-store, must-revalidate, private"),
    ("Expires", "Thu, 01 Jan 1970 00:00:00 UTC"),
)


def common_headers(settings: TorchServeSettings) -> Headers:
    """The fields that are the same in each response: against caches, and for CORS as configured."""
    cors = (
        ("Access-Control-Allow-Origin", settings.cors_allowed_origin),
        ("Access-Control-Allow-Methods", settings.cors_allowed_methods),
        ("Access-Control-Allow-Headers", settings.cors_allowed_headers),
    )
    if not settings.cors_allowed_origin:
        return _NO_CACHE
    return (*_NO_CACHE, *((name, value) for name, value in cors if value))


def with_common_headers(response: Response, request_id: str, common: Headers) -> Response:
    """A response with its request's id, and the common fields that it does not have already."""
    if response.status == 413 and not response.chunks:
        return response  # TorchServe's decoder refuses such a request before anything else sees it
    has = {name.lower() for name, _ in response.headers}
    added = tuple(field for field in (("x-request-id", request_id), *common) if field[0].lower() not in has)
    return response._replace(headers=(*added, *response.headers))


def closing(response: Response) -> Response:
    """The response; one that is an error also ends the connection, as TorchServe's do."""
    if response.status < 400 or CLOSE[0] in response.headers:
        return response
    return response._replace(headers=response.headers + CLOSE)


def content_length(headers: Mapping[str, str]) -> int:
    """The announced length of a body; 0 if there is none, or none that is a number."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
