"""The road: stock gunicorn threads and the Flask app, one port a process. Every request can take it.

`create()` runs in each gunicorn worker right after the fork: it joins the supervisor, maps what it is sent and returns
the WSGI application once the supervisor says that all is known. The arbiter has imported this module before it forks.
What gunicorn does differently from what clients of Triton rely on is mended here, around the application.
"""

from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import ParseException

from shoal import control, log
from shoal.errors import InvalidArgumentError
from shoal.frontend.app import create_app
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
    parse_chunk_size = reader.parse_chunk_size
    num_chunks = 0

    def bounded(unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        nonlocal num_chunks
        size, rest = parse_chunk_size(unreader, data=data)
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

    reader.parse_chunk_size = bounded
