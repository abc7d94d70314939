"""The access log, with --log-access: a line for each request that a front end has answered, or whose client has left.

    access: POST /v2/models/simple/infer by 127.0.0.1: 200, 312 bytes, 4.1 ms
    access: gRPC /inference.GRPCInferenceService/ModelInfer by 127.0.0.1: 0, 41 bytes, 1.2 ms

In the JSON format a line has its parts as fields, too: method, path, client, status, bytes, ms. What a client has sent
is shortened and escaped, and the query is left out, as it may hold a secret. gRPC's status is its code's number. Bytes
are those of the response, with HTTP's head on a lane; of a gRPC stream they are not counted. On the road time begins
when the request has come whole and a thread is free. Front-end processes; any thread.
"""

import logging
import time
from socket import socket as Socket

_log = logging.getLogger("shoal")

#: The status of a request whose client has hung up, or was given up, before all of its response had left: nginx's.
HUNG_UP = 499
#: The same of gRPC: CANCELLED.
CANCELLED = 1
_MAX_TEXT = 200


def log_access(method: str, target: str, client: str, status: int, nbytes: int | None, seconds: float) -> None:
    """Log a request; `client` is its address, "" where it has none, `nbytes` None where they were not counted."""
    method, path, ms = _printable(method), _printable(target.partition("?")[0]), round(seconds * 1000, 1)
    fields = {"method": method, "path": path, "client": client, "status": status, "bytes": nbytes, "ms": ms}
    counted = "" if nbytes is None else f" {nbytes} bytes,"
    _log.info(
        "access: %s %s by %s: %d,%s %.1f ms", method, path, client or "this host", status, counted, ms, extra=fields
    )


class HttpExchange:
    """A request on a lane and its response, as far as it has been sent."""

    __slots__ = ("_client", "_request_line", "nbytes", "status")

    def __init__(self, data: bytes, client: Socket) -> None:
        """`data` begins with the request's head."""
        self._client = address_of(client)  # now: the socket of a client that has left has none
        self._request_line = data[: 2 * _MAX_TEXT].partition(b"\r\n")[0]
        # Changed by those that send the response.
        self.status = 0
        self.nbytes = 0

    def sending(self, head: "bytes | bytearray | memoryview", nbytes: int) -> None:
        """Note the beginning of a response, of which `nbytes` bytes are to be sent."""
        self.status = int(bytes(head[9:12]))  # behind "HTTP/1.1 "
        self.nbytes += nbytes

    def end(self, seconds: float, status: int = 0) -> None:
        """Log the request; `status` is 0 for that of the response."""
        method, _, rest = self._request_line.decode("latin-1").partition(" ")
        log_access(method, rest.partition(" ")[0], self._client, status or self.status, self.nbytes, seconds)


class GrpcCalls:
    """The open calls of a connection of gRPC."""

    __slots__ = ("_client", "_open")

    def __init__(self, client: str) -> None:
        self._client = client
        # Changed by every call: method and beginning (monotonic, s), by the number of the stream.
        self._open: dict[int, tuple[str, float]] = {}

    def begin(self, stream_id: int, path: str, now_s: float) -> None:
        """Note a call."""
        self._open[stream_id] = path, now_s

    def end(self, stream_id: int, status: int, nbytes: int | None = None) -> None:
        """Log a call that is over; nothing happens where it is over already."""
        path, begun_s = self._open.pop(stream_id, ("", 0.0))
        if path:
            log_access("gRPC", path, self._client, status, nbytes, time.monotonic() - begun_s)

    def cancel_all(self) -> None:
        """Log all open calls: their client is gone."""
        for stream_id in list(self._open):
            self.end(stream_id, CANCELLED)


def address_of(client: Socket) -> str:
    """The address of a connection's client; "" of a Unix socket's, and of one that is gone."""
    try:
        name = client.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def _printable(text: str) -> str:
    text = text[:_MAX_TEXT]
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
