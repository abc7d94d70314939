"""The responses to requests on the road that no thread answers: the event loop refuses them, or gunicorn's parser.

A refusal has the form of the protocol of its request's path, as far as the head has come. A refusal by the event loop
has a line in the access log if its request's head has come, as the responses of threads have; a refusal by gunicorn's
parser has none. Refusals are made in the event loop's thread, gunicorn's in any thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from shoal.errors import ShoalError
from shoal.frontend.access_log import HUNG_UP, HttpExchange
from shoal.frontend.response import CLOSE, as_bytes, error_json, response_head
from shoal.frontend.road.connection import RoadConnection, parsed
from shoal.frontend.road.endpoints import Endpoint, Endpoints
from shoal.frontend.road.hang_ups import WatchedClient, has_left
from shoal.frontend.torchserve.errors import refusal_response
from shoal.frontend.upload_budget import NoUploadMemoryError
from shoal.torchserve_errors import TorchServeFault

#: A function that writes the error for a request that cannot be read. It takes a socket, a status, a reason and a
#: sentence.
WriteError = Callable[[Any, int, str, str], None]


def refusal(endpoints: Endpoints, connection: RoadConnection, error: ShoalError) -> bytes:
    """The bytes of a response that refuses a connection's request, whole or not, and ends the connection."""
    if connection.is_tunnel:
        return _tunnel_refusal(error)
    head = b"" if connection.arrival is None else connection.arrival.head
    found = parsed(head, connection) if head else None
    endpoint = endpoint_of(endpoints, connection)
    if found is None:
        response = endpoints.refused(endpoint, error)
    else:
        response = endpoints.refused(endpoint, error, found.method, found.target, found.headers)
    data = response_head(response) if found is not None and found.method == "HEAD" else as_bytes(response)
    if endpoints.state.log_access and head:
        exchange = HttpExchange(head, connection.address)
        is_gone = has_left(WatchedClient(connection.sock, lambda: False))
        if not is_gone:
            exchange.sending(data, len(data))
        exchange.end(time.monotonic() - connection.begun_s, HUNG_UP if is_gone else 0)
    return data


def _tunnel_refusal(error: ShoalError) -> bytes:
    """The refusal of a call of gRPC, as a lane reads it (frontend/grpc/tunnel.py)."""
    status = 8 if isinstance(error, NoUploadMemoryError) else error.grpc_status
    message = quote(str(error), safe=" ")
    return f"HTTP/1.1 200 OK\r\ngrpc-status: {status}\r\ngrpc-message: {message}\r\nContent-Length: 0\r\n\r\n".encode()


def endpoint_of(endpoints: Endpoints, connection: RoadConnection) -> Endpoint:
    """The endpoint at which a connection that is no tunnel has arrived."""
    server: Any = connection.server
    address, port = server[:2]
    return endpoints.at(address, port)


def error_writer(endpoints: Endpoints, write: Callable[[Any, bytes], None]) -> WriteError:
    """The function that sends the error for a request that gunicorn cannot read, as JSON; it replaces gunicorn's
    function. `write` sends bytes on a socket."""

    def write_error(sock: Any, status: int, reason: str, sentence: str) -> None:
        state, server = endpoints.state, sock.getsockname()
        name = state.endpoint_at(*server[:2]) if isinstance(server, tuple) else ""  # a socket of a pair has no address
        if name in state.torchserve_apis:  # TorchServe's only sentence for broken requests; the log has the reason
            response = refusal_response(TorchServeFault(status, "BadRequestException", "Invalid HTTP message."))
            response = endpoints.named[name].finish(response)
        else:
            response = error_json(status, sentence or reason, CLOSE)
        write(sock, as_bytes(response))

    return write_error


_log = logging.getLogger("shoal")

#: Most lines about refused requests in any second (ours).
LINES_PER_S = 5
#: How gunicorn's messages about refused requests begin.
_REFUSED = ("Invalid request", "Error handling request", "Socket error processing request")


class RefusalLog(logging.Filter):
    """A filter for gunicorn's log that passes LINES_PER_S lines about refused requests in a second; further lines, as
    about a client that sends one bad request after another, are counted, and the count is logged when the second is
    over. Any thread may log."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._lock = threading.Lock()
        # Changed under the lock: the end of the present second, the lines passed in it, and the lines dropped.
        self._second_ends_s = 0.0
        self._num_lines = 0
        self._num_dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be logged. Records about a socket's timeout are not: each client that stops in the
        middle of a request would leave twenty lines."""
        if record.exc_info and isinstance(record.exc_info[1], BlockingIOError):
            return False
        if not str(record.msg).startswith(_REFUSED):
            return True
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._second_ends_s:
                self._second_ends_s, self._num_lines = now_s + 1.0, 0
            self._num_lines += 1
            if self._num_lines <= LINES_PER_S:
                return True
            self._num_dropped += 1
            is_first = self._num_dropped == 1
        if is_first:
            self._summarise_after(1.0)
        return False

    def _summarise_after(self, delay_s: float) -> None:
        timer = threading.Timer(delay_s, self.summarise)
        timer.daemon = True
        timer.start()

    def summarise(self) -> None:
        """Log how many lines were dropped since the last summary."""
        with self._lock:
            num_dropped, self._num_dropped = self._num_dropped, 0
        if num_dropped:
            _log.warning("%d more requests were refused, of which there is no line", num_dropped)
