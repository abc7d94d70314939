"""A listener of TorchServe's on the road: the admission of its requests, and the headers of its responses. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from shoal.errors import ShoalError
from shoal.frontend.access.tokens import REFUSAL, TOKEN_REFUSAL, Tokens
from shoal.frontend.response import Response
from shoal.frontend.road.body import BodyTooLongError
from shoal.frontend.router import RouteMatch
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.common_headers import closing, common_headers, content_length, with_common_headers
from shoal.frontend.torchserve.errors import error_response
from shoal.frontend.torchserve.predictions import new_id
from shoal.frontend.torchserve.routes import router_of

#: The response to a body that is too long: without a body, as TorchServe's.
TOO_LONG = Response(413)


class RoadEndpoint:
    """A listener that serves some of TorchServe's APIs."""

    def __init__(self, state: ServerState, apis: Sequence[str], count: Callable[[int], None]) -> None:
        """`count` counts a response of a status."""
        self._count = count
        self._routes = router_of(apis)
        self._common = common_headers(state.torchserve)
        self._has_cors = bool(state.torchserve.cors_allowed_origin)
        self._tokens = Tokens(state.torchserve.token_file)
        self._max_request_size = state.torchserve.max_request_size

    def admit(self, state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> RouteMatch | Response:
        """The handler for a request, or its refusal; a body that is too long is refused before anything else."""
        if content_length(headers) > self._max_request_size:
            return TOO_LONG
        if method == "OPTIONS" and self._has_cors and "access-control-request-method" in headers:
            return Response(200)  # a browser's preflight, which has no token; `finish` adds what is allowed
        group = self._routes.group_of(target)
        if not self._tokens.admits(group, headers, datetime.now().astimezone()):
            return error_response(TOKEN_REFUSAL if group == "token" else REFUSAL)
        return self._routes.admit(state, method, target, headers)

    def refuse(self, error: ShoalError) -> Response:
        return TOO_LONG if isinstance(error, BodyTooLongError) else error_response(error)

    def finish(self, response: Response) -> Response:
        """The response with the fields that each has; one that is an error ends the connection."""
        self._count(response.status)
        return closing(with_common_headers(response, new_id(), self._common))
