"""Two logs of requests: with --log-access, a line for each request that a front end has answered, or whose client has
left; and the audit log, a line for each request to change the server, let in or refused, with its sender.

    access: POST /v2/models/simple/infer by 127.0.0.1: 200, 312 bytes, 4.1 ms
    access: gRPC /inference.GRPCInferenceService/ModelInfer by 127.0.0.1: 0, 41 bytes, 1.2 ms

In the JSON format a line has its parts as fields, too: method, path, client, status, bytes, ms; and trace_id if the
request belongs to a trace (W3C's `traceparent`), as in lines about failures. What a client has sent is shortened and
escaped, and the query is left out, as it may hold a secret. A gRPC call's status is the number of its status code.
Bytes are those of the response, with HTTP's head on a lane; of a gRPC stream they are not counted. On the road the
milliseconds count from when the request has come whole and a thread is free; for a request that gets no thread, from
its first byte. Front-end processes; any thread.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from socket import socket as Socket

from shoal.api_keys import ApiKey
from shoal.tracer.sampling import is_context

_log = logging.getLogger("shoal")

#: The HTTP status in the log for a request whose client hung up, or was disconnected, before all of the response had
#: left; nginx logs the same number.
HUNG_UP = 499
#: gRPC's status CANCELLED, in the log for a call whose client has cancelled the call or hung up.
CANCELLED = 1
_MAX_TEXT = 200
_TRACE_PARENT = re.compile(rb"\r\ntraceparent:[ \t]*([!-~]+)", re.IGNORECASE)


def _log_line(
    method: str, target: str, client: str, status: int, nbytes: int | None, seconds: float, traced: Mapping[str, str]
) -> None:
    """Log a request. `client` is the client's address, "" if it is not known; `nbytes` is the response's size, None if
    it was not counted; `traced` are the request's headers, in which `traceparent` is looked for."""
    method, path, ms = printable(method), printable(target.partition("?")[0]), round(seconds * 1000, 1)
    fields = {"method": method, "path": path, "client": client, "status": status, "bytes": nbytes, "ms": ms}
    counted, trace = "" if nbytes is None else f" {nbytes} bytes,", ""
    if is_context(parent := traced.get("traceparent", "")):
        fields["trace_id"] = parent[3:35]
        trace = f", trace_id {parent[3:35]}"
    who = client or "a client that is gone"
    _log.info("access: %s %s by %s: %d,%s %.1f ms%s", method, path, who, status, counted, ms, trace, extra=fields)


class HttpExchange:
    """An HTTP request, for the line that is logged when its response has left, and the status and size of that
    response."""

    __slots__ = ("_client", "_request_line", "_traced", "nbytes", "status")

    def __init__(self, data: bytes, client: str) -> None:
        """`data` begins with the request's head, which may be incomplete; `client` is an address."""
        end = data.find(b"\r\n\r\n")
        head = data if end < 0 else data[:end]
        parent = _TRACE_PARENT.search(head)
        self._client = client
        self._request_line = head[: 2 * _MAX_TEXT].partition(b"\r\n")[0]
        self._traced = {} if parent is None else {"traceparent": parent[1].decode("ascii")}
        # The fields below are changed by the code that sends the response.
        self.status = 0
        self.nbytes = 0

    def sending(self, head: "bytes | bytearray | memoryview", nbytes: int) -> None:
        """Note the beginning of a response, of which `nbytes` bytes are to be sent."""
        self.status = int(bytes(head[9:12]))  # behind "HTTP/1.1 "
        self.nbytes += nbytes

    def end(self, seconds: float, status: int = 0) -> None:
        """Log the request, with `status` or, if `status` is 0, with the status of the response."""
        method, _, rest = self._request_line.decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        _log_line(method, target, self._client, status or self.status, self.nbytes, seconds, self._traced)


class GrpcCalls:
    """The open calls of a gRPC connection, each of which is logged when it ends."""

    __slots__ = ("_client", "_open")

    def __init__(self, client: str) -> None:
        self._client = client
        # Changed by every call: headers and beginning (monotonic, s), by the number of the stream.
        self._open: dict[int, tuple[Mapping[str, str], float]] = {}

    def begin(self, stream_id: int, headers: Mapping[str, str], now_s: float) -> None:
        """Note a call; its path is among its headers."""
        self._open[stream_id] = headers, now_s

    def end(self, stream_id: int, status: int, nbytes: int | None = None) -> None:
        """Log a call that has ended; no effect for a call that was logged already."""
        call = self._open.pop(stream_id, None)
        if call is not None:
            headers, begun_s = call
            seconds = time.monotonic() - begun_s
            _log_line("gRPC", headers[":path"], self._client, status, nbytes, seconds, headers)

    def cancel_all(self) -> None:
        """Log all open calls: their client is gone."""
        for stream_id in list(self._open):
            self.end(stream_id, CANCELLED)


def address_of(client: Socket) -> str:
    """The address of a connection's client; "" if the client is gone."""
    try:
        return str(client.getpeername()[0])
    except OSError:
        return ""


def printable(text: str) -> str:
    """A client's text as a line of the log may hold it: shortened, and without characters that could forge another
    line."""
    text = text[:_MAX_TEXT]
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]


#: The most lines about refused requests that a process logs in one second (ours).
REFUSED_PER_S = 5


class Audit:
    """The audit log of a process. It shows an API key by the key's name, never by its text:

        admin: POST /v2/repository/models/simple/load by key 'deploy' at 10.1.2.3: 200

    Lines about refused requests are bounded, since strangers could otherwise fill the log.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        # The fields below are changed under the lock.
        self._second_ends_s = 0.0
        self._num_refused = 0
        self._num_silent = 0

    def answered(self, what: str, key: ApiKey | None, address: str, outcome: object) -> None:
        """Log a request that was let in; `outcome` is the answer's HTTP status, or the number of its gRPC status."""
        _log.info("admin: %s by %s: %s", printable(what), _who(key, address), outcome)

    def refused(self, what: str, address: str, outcome: object) -> None:
        """Log a request that was not let in."""
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._second_ends_s:
                self._second_ends_s, self._num_refused = now_s + 1.0, 0
            self._num_refused += 1
            if self._num_refused > REFUSED_PER_S:
                self._num_silent += 1
                return
            num_silent, self._num_silent = self._num_silent, 0
        more = f"; {num_silent} more before it, of which there is no line" if num_silent else ""
        _log.warning("admin: %s by %s refused: %s%s", printable(what), _who(None, address), outcome, more)


#: This process's audit log.
AUDIT = Audit()


def _who(key: ApiKey | None, address: str) -> str:
    return f"key '{key.name}' at {address or 'this host'}" if key is not None else address or "this host"
