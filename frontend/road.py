"""The road: stock gunicorn threads and the Flask app, one port a process. Every request can take it.

`create()` runs in each gunicorn worker right after the fork: it joins the supervisor, maps what it is sent and returns
the WSGI application once the supervisor says that all is known. The arbiter has imported this module before it forks.
What gunicorn does differently from what clients of Triton rely on is mended here, around the application.
"""

import logging
from typing import TYPE_CHECKING, Any

import gunicorn.util
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from shoal import control, log
from shoal.errors import InvalidArgumentError
from shoal.frontend.app import create_app
from shoal.frontend.response import error_json
from shoal.frontend.state import ServerState
from shoal.frontend.transport import PortTransport
from shoal.process import set_title
from shoal.shm.counters import CounterTableView
from shoal.shm.doorbell import Doorbell
from shoal.shm.port import Port
from shoal.shm.segment import Segment, SegmentView

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Triton's: one chunk cost it stack, and each costs us a pass of a loop in Python.
MAX_CHUNKS = 65536
#: Ours: of all chunks of a body together. Nobody sends any, and a size written with a million zeros counts too.
MAX_CHUNK_EXTENSION_BYTES = 256


class RoadWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's threads, not held up by connections that have never asked anything, and silent about silence."""

    def init_process(self) -> None:
        """In the worker, after the fork."""
        self.log.error_log.addFilter(_is_worth_a_line)
        super().init_process()

    def _cap_keepalive(self, deadline: float) -> None:
        """Called once, when the worker is to end: gunicorn forgets those that wait for their first byte."""
        super()._cap_keepalive(deadline)
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, deadline)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Not the socket's own deadline: a client that stops in the middle of a request would cost twenty lines."""
    return not (record.exc_info and isinstance(record.exc_info[1], BlockingIOError))


def create() -> "WSGIApplication":
    """Join as a client of the star and build the application."""
    set_title("road")
    channel = control.join("client", name="road")
    message, (own, link, bell, batcher_bell, counters) = channel.receive()
    log.configure(**message["log"])
    state = ServerState(**message["state"], counters=CounterTableView(SegmentView.attach(counters)))
    port = Port(Segment.attach(own), SegmentView.attach(link), Doorbell(batcher_bell), message["max_in_flight"])
    transport = PortTransport(port, Doorbell(bell), channel, state, message["request_timeout_s"])
    channel.acknowledge(message)
    while not state.started:
        transport.receive()
    transport.start()
    application = create_app(state, transport, body_errors=(ParseException,))
    return mend(application, state.max_request_bytes)


def mend(application: "WSGIApplication", max_request_bytes: int) -> "WSGIApplication":
    """The application on gunicorn: connections close where it says so, chunked bodies are bounded while they arrive."""

    def mended(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        if "HTTP_TRANSFER_ENCODING" in environ:
            bound_chunks(environ["wsgi.input"].reader, max_request_bytes)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if ("Connection", "close") in headers:
                # gunicorn drops the header, for it is hop by hop, and keeps the connection; its own object knows
                # better.
                start_response.__self__.force_close()  # type: ignore[attr-defined]
            return start_response(status, headers, exc_info)

        return application(environ, start)

    return mended


def bound_chunks(reader: Any, max_request_bytes: int) -> None:
    """Make gunicorn's chunked reader refuse too many chunks, and one that says it is larger than any body may be.

    gunicorn would wait for 2^72 bytes that were announced, and count nothing.
    """
    parse_chunk_size, read_into = reader.parse_chunk_size, reader.read_into
    num_chunks = num_read = num_extension_bytes = 0

    def counted(unreader: Any, line: bytearray) -> None:
        nonlocal num_read
        before = len(line)
        read_into(unreader, line)
        num_read += len(line) - before

    def bounded(unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        nonlocal num_chunks, num_extension_bytes
        before = num_read - len(data or b"")
        size, rest = parse_chunk_size(unreader, data=data)
        if rest is not None:  # not the last chunk, with which the trailers were read
            num_extension_bytes += num_read - before - len(rest) - len(f"{size:x}\r\n")
        if num_extension_bytes > MAX_CHUNK_EXTENSION_BYTES:
            raise InvalidArgumentError(
                f"the chunk extensions of the request body exceed the maximum of {MAX_CHUNK_EXTENSION_BYTES} bytes. "
                "Send chunks without extensions"
            )
        num_chunks += size > 0
        if num_chunks > MAX_CHUNKS:
            raise InvalidArgumentError(
                f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. "
                "Send larger chunks, or the whole body with Content-Length"
            )
        if size > max_request_bytes:
            raise InvalidArgumentError(
                f"a chunk of {size} bytes exceeds the maximum allowed value of {max_request_bytes} bytes. "
                "Use --max-request-bytes to increase the limit."
            )
        return size, rest

    reader.parse_chunk_size, reader.read_into = bounded, counted


def write_error(sock: Any, status: int, reason: str, sentence: str) -> None:
    """What gunicorn answers where it cannot read a request, as JSON."""
    response = error_json(status, sentence or reason)
    (body,) = response.chunks
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    gunicorn.util.write_nonblock(sock, f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + bytes(body))


# Its workers look the function up in the module each time.
gunicorn.util.write_error = write_error
