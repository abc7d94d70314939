"""The Flask application of the road: makes a WSGI request a call of `dispatch`, and its response a WSGI response. The
only file that uses Flask.

One function handles every path and method, so Flask routes nothing, answers no HEAD or OPTIONS itself and never sends
HTML. The body is read here, exactly as long as it is announced, and refused beforehand if that is too long. Unexpected
exceptions become JSON errors here and nowhere else. `Connection: close` among a response's headers is for the server to
obey: WSGI servers drop the header itself.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, request
from flask import Response as FlaskResponse

from shoal.errors import InvalidArgumentError, ShoalError, UnsupportedError
from shoal.frontend.clouds.sagemaker import SAGEMAKER
from shoal.frontend.clouds.vertex_ai import admit_vertex_ai
from shoal.frontend.header_forwarding import forwarded
from shoal.frontend.local_callers import REFUSAL, may_administer
from shoal.frontend.metrics.listener import MetricsListener
from shoal.frontend.response import CLOSE, Response, body_cut_short, error_json, error_response
from shoal.frontend.road.traced_transport import TracedTransport
from shoal.frontend.router import HTTP, Admit, RouteMatch, answer, path_of
from shoal.frontend.state import ServerState

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

_log = logging.getLogger("shoal")

#: The name of a WSGI variable with the request's head as it came: WSGI's own have lost how the names were spelled.
HEAD_VARIABLE = "shoal.head"
#: The name of a WSGI variable with a transport that cancels requests when this client hangs up.
TRANSPORT_VARIABLE = "shoal.transport"
_NO_BODY = memoryview(b"")
# What wsgi.input raises if the client sends no more or a chunk is broken; each server has further classes.
_BODY_ERRORS: tuple[type[Exception], ...] = (OSError, ValueError)

Environ = dict[str, Any]


class WsgiResponse(FlaskResponse):
    """Flask's response, without Flask's default content type: health responses have none."""

    default_mimetype = None


def create_app(state: ServerState, transport: "Transport", body_errors: tuple[type[Exception], ...] = ()) -> Flask:
    """The application, for any WSGI server.

    `body_errors` are the exceptions that this server's `wsgi.input` raises for a broken body.
    """
    app = Flask("shoal", static_folder=None, template_folder=None)
    unreadable = _BODY_ERRORS + body_errors
    admit = _endpoints(MetricsListener(state, transport))

    @app.before_request
    def serve() -> WsgiResponse:
        environ = request.environ
        try:
            watched = environ.get(TRANSPORT_VARIABLE, transport)
            return _to_wsgi(_serve(state, watched, admit, environ, unreadable))
        except Exception as error:  # noqa: BLE001  outermost: an unexpected exception is logged and answered as JSON
            _log.exception("no answer to %s %r", environ["REQUEST_METHOD"], path_of(_target(environ)))
            sentence = f"the front end failed with {type(error).__name__}; the server's log has the details"
            return _to_wsgi(error_json(500, sentence, CLOSE))

    return app


def _endpoints(metrics: MetricsListener) -> dict[str, Admit]:
    """For the name of each endpoint (shoal/options.py), the function that finds a request's handler there."""

    def admit_metrics(_state: ServerState, method: str, target: str, _headers: Mapping[str, str]) -> Response:
        return metrics.answer(method, path_of(target))

    return {
        "http": HTTP.admit,
        "metrics": admit_metrics,
        "grpc": _admit_grpc,
        "sagemaker": SAGEMAKER.admit,
        "vertex-ai": partial(admit_vertex_ai, metrics=admit_metrics),
    }


def _serve(
    state: ServerState,
    transport: "Transport",
    admit: Mapping[str, Admit],
    environ: Environ,
    unreadable: tuple[type[Exception], ...],
) -> Response:
    method = environ["REQUEST_METHOD"]
    target = _target(environ)
    if environ["SERVER_PROTOCOL"] == "HTTP/1.1" and "HTTP_HOST" not in environ:
        return error_json(400, "the request has no Host header, which HTTP/1.1 requires", CLOSE)
    headers = _headers(environ)
    found = admit[_endpoint_of(state, environ)](state, method, target, headers)
    if not isinstance(found, Response) and found.is_administrative:
        found = found if may_administer(state, environ.get("REMOTE_ADDR", ""), headers) else error_json(403, REFUSAL)
    if isinstance(found, Response):
        # The body was not read, and could not be told from the next request.
        return found._replace(headers=found.headers + CLOSE) if _has_body(environ) else found
    begun_ns = time.monotonic_ns()
    try:
        body = _read_body(environ, state.max_request_bytes, unreadable)
    except ShoalError as error:
        return error_response(error, CLOSE)
    fields = forwarded(state.header_forward_pattern, environ.get(HEAD_VARIABLE, b""))
    if state.tracing is None:
        return answer(found, state, transport, headers, body, fields)
    traced = TracedTransport(transport, state.tracing, headers, begun_ns)
    return traced.see_off(answer(found, state, traced, headers, body, fields))


def _endpoint_of(state: ServerState, environ: Environ) -> str:
    """The name of the endpoint at which a request arrived."""
    if environ.get("REMOTE_ADDR") == "":  # only a socketpair has no address, and only gRPC's lanes create socketpairs
        return "grpc"
    return state.endpoint_at(environ["SERVER_NAME"], environ["SERVER_PORT"])


def _admit_grpc(state: ServerState, method: str, target: str, headers: Mapping[str, str]) -> Response | RouteMatch:
    # Where there is no gRPC, protobuf is not imported.
    from shoal.frontend.grpc.tunnel import admit

    return admit(state, method, target, headers)


def _target(environ: Environ) -> str:
    """The request's target, as the client wrote it; with escapes undone where the server does not pass it on as
    written."""
    written: str = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    return written or f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"


def _has_body(environ: Environ) -> bool:
    return "HTTP_TRANSFER_ENCODING" in environ or environ.get("CONTENT_LENGTH", "") not in {"", "0"}


def _read_body(environ: Environ, limit: int, unreadable: tuple[type[Exception], ...]) -> memoryview:
    """The whole body. Raises InvalidArgumentError if it is longer than `limit`, shorter than announced, or broken."""
    if not _has_body(environ):
        return _NO_BODY
    announced = _announced_length(environ)
    if announced is not None and announced > limit:
        raise _too_long(announced, limit)
    wanted = limit + 1 if announced is None else announced
    try:
        body = _read(environ["wsgi.input"], wanted)
    except unreadable as error:
        raise InvalidArgumentError(f"the request body cannot be read: {error}") from error
    if announced is None and len(body) > limit:
        raise _too_long(len(body), limit)
    if announced is not None and len(body) < announced:
        raise body_cut_short(len(body), announced)
    return memoryview(body)


def _announced_length(environ: Environ) -> int | None:
    """The value of Content-Length; None for a chunked body. Raises ShoalError.

    A request that has both is refused, since it may be an attempt at request smuggling (RFC 9112, 6.3).
    """
    length = environ.get("CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ:
        coding = environ["HTTP_TRANSFER_ENCODING"]
        if coding.strip().lower() != "chunked":
            raise UnsupportedError(f"Transfer-Encoding must be 'chunked' alone, got: {coding[:40]}")
        if length:
            raise InvalidArgumentError("the request has both Content-Length and Transfer-Encoding; send one of them")
        if not environ.get("wsgi.input_terminated"):
            raise InvalidArgumentError("this server cannot read a chunked request body; send Content-Length")
        return None
    if not (length.isascii() and length.isdigit()):
        raise InvalidArgumentError(f"Content-Length must be a number of bytes, got: {length[:40]}")
    return int(length.lstrip("0")[:20] or "0")  # int() refuses thousands of digits; twenty are past any limit


def _read(stream: Any, nbytes: int) -> bytes:
    data: bytes = stream.read(nbytes)
    if len(data) == nbytes or not data:
        return data
    pieces, missing = [data], nbytes - len(data)
    while missing and (data := stream.read(missing)):
        pieces.append(data)
        missing -= len(data)
    return b"".join(pieces)


def _too_long(nbytes: int, limit: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the request body has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of {limit} bytes. "
        "Use --max-request-bytes to increase the limit."
    )


def _headers(environ: Environ) -> dict[str, str]:
    headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    if "CONTENT_TYPE" in environ:
        headers["content-type"] = environ["CONTENT_TYPE"]
    if "CONTENT_LENGTH" in environ:
        headers["content-length"] = environ["CONTENT_LENGTH"]
    return headers


def _to_wsgi(response: Response) -> WsgiResponse:
    if response.stream is not None:
        return _closing(WsgiResponse(response.stream, response.status, list(response.headers)), response)
    headers = [*response.headers, ("Content-Length", str(sum(map(len, response.chunks))))]
    return _closing(WsgiResponse(list(map(bytes, response.chunks)), response.status, headers), response)


def _closing(reply: WsgiResponse, response: Response) -> WsgiResponse:
    if response.close is not None:
        reply.call_on_close(response.close)
    return reply
