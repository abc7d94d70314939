"""The endpoints of the road, and what each does with a WSGI request: authorise it, read its body, call its handler.

The body is read here, exactly as long as announced, and refused unread if it is too long. Unexpected exceptions become
JSON errors here and nowhere else. `Connection: close` among a response's headers has the WSGI server close the
connection: such servers drop the header itself. Knows no Flask.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.api_keys import ApiKey
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.access.authorisation import authorise, is_authorised
from shoal.frontend.access.doors import Scope, scope_of
from shoal.frontend.access.key_limits import KeyLimitError
from shoal.frontend.access_log import AUDIT
from shoal.frontend.clouds.sagemaker import admit_sagemaker
from shoal.frontend.clouds.vertex_ai import admit_vertex_ai
from shoal.frontend.header_forwarding import forwarded
from shoal.frontend.metrics.listener import MetricsListener
from shoal.frontend.response import CLOSE, Response, error_json, error_response
from shoal.frontend.road.body import BodyTooLongError, ControlBodyTooLongError, Environ, has_body, read_body
from shoal.frontend.road.transport import TracedTransport
from shoal.frontend.router import HTTP, Admit, RouteMatch, answer, path_of
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.listener import RoadEndpoint
from shoal.frontend.tracing import or_untraced
from shoal.timing import wants_timing

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from shoal.frontend.road.transport import Transport

_log = logging.getLogger("shoal")

#: The name of a WSGI variable with the request's head as it came: WSGI's own variables do not keep how the client
#: spelled field names.
HEAD_VARIABLE = "shoal.head"
#: The name of a WSGI variable with a transport that cancels requests when the client of this WSGI request hangs up.
TRANSPORT_VARIABLE = "shoal.transport"


class Endpoint(NamedTuple):
    """An endpoint (shoal/options.py): how its requests are admitted, and the form of its responses."""

    admit: Admit
    refuse: Callable[[ShoalError], Response] = error_response
    finish: Callable[[Response], Response] = lambda response: response  # adds the headers of every response
    max_request_bytes: int | None = None  # None: the server's
    preview: Admit | None = None  # like `admit`, but never waits; None: `admit` itself never waits


class Endpoints:
    """The endpoints of a server by their names; answers each request at the endpoint at which it arrived.

    `count` counts a response of TorchServe's protocol by its status; `body_errors` are the exceptions that this
    server's `wsgi.input` raises for a broken body.
    """

    def __init__(
        self,
        state: ServerState,
        transport: "Transport",
        count: Callable[[int], None] = lambda _status: None,
        body_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        metrics = MetricsListener(state, transport)
        scope = scope_of("metrics", "GET /metrics")

        def admit_metrics(_state: ServerState, method: str, target: str, _headers: Mapping[str, str]) -> RouteMatch:
            path = path_of(target)
            return RouteMatch(lambda _call: metrics.answer(method, path), "", None, "", scope)

        def torchserve(apis: Sequence[str]) -> Endpoint:
            made = RoadEndpoint(state, apis, count)
            return Endpoint(made.admit, made.refuse, made.finish, state.torchserve.max_request_size)

        self.state = state
        self._transport = transport
        # wsgi.input raises the first two if the client sends no more or a chunk is broken.
        self._unreadable: tuple[type[Exception], ...] = (OSError, ValueError, *body_errors)
        self.named = {
            "http": Endpoint(HTTP.admit),
            "openai": Endpoint(HTTP.admit),
            "metrics": Endpoint(admit_metrics, preview=_without_body),
            "grpc": Endpoint(_admit_grpc),
            "sagemaker": Endpoint(admit_sagemaker),
            "vertex-ai": Endpoint(
                partial(admit_vertex_ai, metrics=admit_metrics), preview=partial(admit_vertex_ai, metrics=_without_body)
            ),
            **{name: torchserve(apis) for name, apis in state.torchserve_apis.items()},
        }

    def at(self, address: str, port: int | str) -> Endpoint:
        """The endpoint at which a connection with this local address arrived."""
        return self.named[self.state.endpoint_at(address, port)]

    def body_limit(
        self, endpoint: Endpoint, method: str, target: str, headers: Mapping[str, str], address: str
    ) -> int | None:
        """The most bytes of a request's body that are read; None if the request is answered, or refused, without its
        body. Never waits."""
        found = (endpoint.preview or endpoint.admit)(self.state, method, target, headers)
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":  # body.py refuses any other coding
            return None
        if isinstance(found, Response) or not is_authorised(self.state, found.scope, headers, address, found.model):
            return None
        return self._limits(endpoint, found)[0]

    def refused(
        self,
        endpoint: Endpoint,
        error: ShoalError,
        method: str = "",
        target: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """The response that refuses a request, and ends the connection, in the form of the path's protocol; without a
        `target`, in the form of the endpoint's protocol. Never waits."""
        found = (endpoint.preview or endpoint.admit)(self.state, method, target, headers) if target else None
        refuse = found.refuse if isinstance(found, RouteMatch) else None
        return endpoint.finish(_closed((refuse or endpoint.refuse)(error)))

    def respond(self, environ: Environ) -> Response:
        """The response to a request. An unexpected exception is logged, and becomes an error response."""
        try:
            endpoint = self.named[self._name_of(environ)]
            return endpoint.finish(self._serve(endpoint, environ))
        except Exception as error:  # noqa: BLE001  outermost
            _log.exception("no answer to %s %r", environ["REQUEST_METHOD"], path_of(_target(environ)))
            sentence = f"the front end failed with {type(error).__name__}; the server's log has the details"
            return error_json(500, sentence, CLOSE)

    def scraped(self, application: "WSGIApplication") -> "WSGIApplication":
        """An application that answers GET at the metrics endpoint itself, and passes all else to `application`: a road
        that is only scraped never imports Flask."""

        def answered(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
            if environ["REQUEST_METHOD"] != "GET" or self._name_of(environ) != "metrics":
                return application(environ, start_response)
            response = self.respond(environ)
            body = b"".join(response.chunks)
            headers = [*response.headers, ("Content-Length", str(len(body)))]
            start_response(f"{response.status} {HTTPStatus(response.status).phrase.upper()}", headers)
            return [body]

        return answered

    def _name_of(self, environ: Environ) -> str:
        """The name of the endpoint at which a request arrived."""
        if environ.get("REMOTE_ADDR") == "":  # a gRPC lane's socket pair; all other connections have an address
            return "grpc"
        return self.state.endpoint_at(environ["SERVER_NAME"], environ["SERVER_PORT"])

    def _limits(self, endpoint: Endpoint, found: RouteMatch) -> tuple[int, type[BodyTooLongError]]:
        """The most bytes of a request's body, and the error for a longer one."""
        limit = endpoint.max_request_bytes or self.state.max_request_bytes
        if found.has_small_body and self.state.max_control_bytes < limit:
            return self.state.max_control_bytes, ControlBodyTooLongError
        return limit, BodyTooLongError

    def _serve(self, endpoint: Endpoint, environ: Environ) -> Response:
        state = self.state
        method = environ["REQUEST_METHOD"]
        target = _target(environ)
        if environ["SERVER_PROTOCOL"] == "HTTP/1.1" and "HTTP_HOST" not in environ:
            error = InvalidArgumentError("the request has no Host header, which HTTP/1.1 requires")
            return _closed(endpoint.refuse(error))
        headers = _headers(environ)
        found = endpoint.admit(state, method, target, headers)
        key: ApiKey | None = None
        if isinstance(found, RouteMatch) and found.refuse is not None:
            endpoint = endpoint._replace(refuse=found.refuse)
        if not isinstance(found, Response):
            try:
                key = authorise(state, found.scope, headers, environ.get("REMOTE_ADDR", ""), found.model)
            except ShoalError as error:
                if found.scope is Scope.ADMIN:
                    AUDIT.refused(_audited(environ), environ.get("REMOTE_ADDR", ""), error.http_status)
                found = endpoint.refuse(error)
        if isinstance(found, Response):
            # The body was not read, so its bytes could be taken for the next request.
            return _closed(found) if has_body(environ) else found
        try:
            response = state.key_uses.answer(
                key if found.scope is Scope.INFER else None,
                partial(self._answer, endpoint, environ, headers, found),
            )
        except KeyLimitError as error:
            response = endpoint.refuse(error)
            return _closed(response) if has_body(environ) else response
        if found.scope is Scope.ADMIN:
            AUDIT.answered(_audited(environ), key, environ.get("REMOTE_ADDR", ""), response.status)
        return response

    def _answer(self, endpoint: Endpoint, environ: Environ, headers: Mapping[str, str], found: RouteMatch) -> Response:
        begun_ns = time.monotonic_ns()
        try:
            body = read_body(environ, self._unreadable, *self._limits(endpoint, found))
        except ShoalError as error:
            return _closed(endpoint.refuse(error))
        state, transport = self.state, environ.get(TRANSPORT_VARIABLE, self._transport)
        head = environ.get(HEAD_VARIABLE, b"")
        fields = forwarded(state.header_forward_pattern, head)
        if state.tracing is None and not wants_timing(headers):
            return answer(found, state, transport, headers, body, fields, head, endpoint.refuse)
        tracing = or_untraced(state.tracing, state.models.names)
        traced = TracedTransport(transport, tracing, headers, begun_ns)
        return traced.ending_trace(answer(found, state, traced, headers, body, fields, head, endpoint.refuse))


def _without_body(_state: ServerState, _method: str, _target: str, _headers: Mapping[str, str]) -> Response:
    """Stands for a response that does not depend on the request's body (see Admit)."""
    return Response(200)


def _audited(environ: Environ) -> str:
    """A request's method and path, for the audit log."""
    return f"{environ['REQUEST_METHOD']} {path_of(_target(environ))}"


def _closed(response: Response) -> Response:
    """The response, after which the server closes the connection."""
    return response._replace(headers=response.headers + CLOSE)


def _admit_grpc(state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> Response | RouteMatch:
    # Imported here, so that a server without gRPC does not import protobuf.
    from shoal.frontend.grpc.tunnel import admit

    return admit(state, method, target, headers)


def _target(environ: Environ) -> str:
    """The request's target as the client wrote it or, if the WSGI server passes on only the decoded path, with escapes
    undone."""
    written: str = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    return written or f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"


def _headers(environ: Environ) -> dict[str, str]:
    headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    if "CONTENT_TYPE" in environ:
        headers["content-type"] = environ["CONTENT_TYPE"]
    if "CONTENT_LENGTH" in environ:
        headers["content-length"] = environ["CONTENT_LENGTH"]
    return headers
