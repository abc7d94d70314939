"""The responses to requests on the road that no thread answers: the event loop refuses them, or gunicorn's parser.

A refusal has the form of the protocol of its request's path, as far as the head has come. One of the event loop's has
a line in the access log, as the responses of threads have; a message that is no HTTP has none. The event loop's thread,
and for gunicorn's refusals any.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from shoal.errors import ShoalError
from shoal.frontend.access_log import HUNG_UP, HttpExchange
from shoal.frontend.response import CLOSE, as_bytes, error_json, response_head
from shoal.frontend.road.connection import RoadConnection, parsed
from shoal.frontend.road.endpoints import Endpoint, refused
from shoal.frontend.road.hang_ups import Caller, has_left
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.errors import refusal_response
from shoal.frontend.upload_budget import NoUploadMemoryError
from shoal.torchserve_errors import TorchServeFault

#: Writes the error for a request that cannot be read: to a socket, with its status, reason and sentence.
WriteError = Callable[[Any, int, str, str], None]


def refusal(
    state: ServerState, endpoints: Mapping[str, Endpoint], connection: RoadConnection, error: ShoalError
) -> bytes:
    """The bytes of a response that refuses a connection's request, whole or not, and ends the connection."""
    if connection.is_tunnel:
        return _tunnel_refusal(error)
    head = b"" if connection.arrival is None else connection.arrival.head
    found = parsed(head, connection) if head else None
    endpoint = endpoint_of(state, endpoints, connection)
    if found is None:
        response = refused(state, endpoint, error)
    else:
        response = refused(state, endpoint, error, found.method, found.target, found.headers)
    data = response_head(response) if found is not None and found.method == "HEAD" else as_bytes(response)
    if state.log_access and head:
        exchange, is_gone = HttpExchange(head, connection.address), has_left(Caller(connection.sock, lambda: False))
        if not is_gone:
            exchange.sending(data, len(data))
        exchange.end(time.monotonic() - connection.begun_s, HUNG_UP if is_gone else 0)
    return data


def _tunnel_refusal(error: ShoalError) -> bytes:
    """The refusal of a call of gRPC, as a lane reads it (frontend/grpc/tunnel.py)."""
    status = 8 if isinstance(error, NoUploadMemoryError) else error.grpc_status
    message = quote(str(error), safe=" ")
    return f"HTTP/1.1 200 OK\r\ngrpc-status: {status}\r\ngrpc-message: {message}\r\nContent-Length: 0\r\n\r\n".encode()


def endpoint_of(state: ServerState, endpoints: Mapping[str, Endpoint], connection: RoadConnection) -> Endpoint:
    """The endpoint at which a connection that is no tunnel has arrived."""
    server: Any = connection.server
    address, port = server[:2]
    return endpoints[state.endpoint_at(address, port)]


def error_writer(
    state: ServerState, endpoints: Mapping[str, Endpoint], write: Callable[[Any, bytes], None]
) -> WriteError:
    """The function that sends the error for a request that gunicorn cannot read, as JSON; replaces gunicorn's. `write`
    sends bytes on a socket."""

    def write_error(sock: Any, status: int, reason: str, sentence: str) -> None:
        server = sock.getsockname()
        name = state.endpoint_at(*server[:2]) if isinstance(server, tuple) else ""  # a socket of a pair has no address
        if name in state.torchserve_apis:  # which has one sentence for all of them; the log has the reason
            response = refusal_response(TorchServeFault(status, "BadRequestException", "Invalid HTTP message."))
            response = endpoints[name].finish(response)
        else:
            response = error_json(status, sentence or reason, CLOSE)
        write(sock, as_bytes(response))

    return write_error
