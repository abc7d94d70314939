"""Errors in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`. Pure; front-end processes."""

from collections.abc import Sequence

import orjson

from shoal.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, ShoalError, UnauthenticatedError
from shoal.frontend.response import Response, encodable, headers_of, json_response


class InvalidRequestError(InvalidArgumentError):
    """A request's body does not follow OpenAI's API, or asks for something that this server does not do; `param` is the
    member at fault."""

    def __init__(self, sentence: str, param: str | None = None) -> None:
        super().__init__(sentence)
        self.param = param


class NoSuchModelError(NotFoundError):
    """A request names a model that is not loaded, or that is no model for requests of its kind."""


def refusal(error: ShoalError) -> Response:
    """The response for an error; OpenAI's client package chooses the error that it raises by the status."""
    return json_response(error.http_status, error_object(error), headers_of(error))


def unrouted(path: str, methods: Sequence[str]) -> Response:
    """The response for a path that the API lacks or, if the path has `methods`, for a method that is not among them."""
    kind, shown, allowed = "invalid_request_error", path[:200], ", ".join(methods)
    if not methods:
        return json_response(404, _object(f"Invalid URL: there is no {shown}", kind))
    refused = _object(f"Not allowed on {shown}: use {allowed}", kind, code="method_not_supported")
    return json_response(405, refused, (("Allow", allowed),))


def error_text(error: ShoalError) -> bytes:
    """An error as JSON, for an event in a stream."""
    return orjson.dumps(error_object(error))


def error_object(error: ShoalError) -> dict[str, object]:
    """The body of the response for an error."""
    kind, code = _kind(error)
    param = error.param if isinstance(error, InvalidRequestError) else None
    if isinstance(error, NoSuchModelError):
        param = "model"
    return _object(str(error), kind, param, code)


def _object(sentence: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": encodable(sentence), "type": kind, "param": param, "code": code}}


def _kind(error: ShoalError) -> tuple[str, str | None]:
    """OpenAI's words for an error: its type and its code."""
    if isinstance(error, NoSuchModelError):
        return "invalid_request_error", "model_not_found"
    if isinstance(error, UnauthenticatedError):
        return "invalid_request_error", "invalid_api_key"
    if isinstance(error, PermissionDeniedError):
        return "invalid_request_error", "permission_denied"
    if error.http_status == 429:
        return "rate_limit_error", "rate_limit_exceeded"
    return ("server_error" if error.http_status >= 500 else "invalid_request_error"), None
