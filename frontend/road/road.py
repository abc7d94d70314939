"""The road: stock gunicorn threads and the Flask app, with one port in each process. It can answer every request.

`create()` runs in each gunicorn worker right after the fork: it connects to the supervisor, maps the shared memory
whose descriptors the supervisor sends, and returns the WSGI application once the supervisor says that it has sent all.
The arbiter has imported this module before it forks. Where gunicorn behaves otherwise than clients of Triton expect,
this file corrects that, outside the application.
"""

# The type hints that pyright brings for gunicorn are of an older version.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false
# pyright: reportIncompatibleMethodOverride=false

import os
import select
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import gunicorn.util
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from gunicorn.workers.gthread import TConn, ThreadWorker

from shoal.errors import InvalidArgumentError
from shoal.frontend import handover
from shoal.frontend.front_end import join
from shoal.frontend.response import error_json
from shoal.frontend.road.app import HEAD_VARIABLE, TRANSPORT_VARIABLE, create_app
from shoal.frontend.road.hang_ups import Caller, HangUps
from shoal.frontend.road.refusal_log import RefusalLog
from shoal.frontend.road.transport import PortTransport, WatchedTransport
from shoal.frontend.road.work import LOOK_BYTES, Work, work_of
from shoal.process import set_title

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from shoal.frontend.road.transport import Transport

#: The road's nice value, so that lanes, batcher and workers go first where cores are short: the road parses large JSON
#: for seconds (ours; measured with 60 MB of JSON on two cores, it takes a third off the lane's p99).
NICE = 10
#: Threads for what is not a request to a model (ours): answers at once; what waits for the supervisor, which loads
#: --model-load-thread-count models at a time while others wait for their turn.
NUM_THREADS = {Work.READING: 4, Work.ADMINISTRATION: 32}
#: Triton's limit, since each chunk cost it stack; here each costs a pass of a loop in Python.
MAX_CHUNKS = 65536
#: For all chunks of a body together (ours). Clients send no extensions; zeros in front of a chunk's size count, too.
MAX_CHUNK_EXTENSION_BYTES = 256


class SpelledRequest(Request):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's request, which also keeps its head as the client spelled it: gunicorn turns the names of fields
    into capitals."""

    def parse(self, unreader: Any) -> bytes:
        """Parse a head as gunicorn does, and keep in `head` the bytes that it consumed."""
        read = unreader.read
        pieces: list[bytes] = []

        def keeping(*arguments: Any) -> bytes:
            piece: bytes = read(*arguments)
            pieces.append(piece)
            return piece

        unreader.read = keeping
        try:
            unused: bytes = super().parse(unreader)
        finally:
            del unreader.read
        self.head = b"".join(pieces).removesuffix(unused)
        return unused


class LentConnection(TConn):  # type: ignore[misc]  # gunicorn has no type hints
    """A connection that a lane has handed over, as gunicorn's threads use it."""

    def init(self) -> None:
        """Create gunicorn's parser, and have it make requests of the class SpelledRequest."""
        super().init()
        self.parser.mesg_class = SpelledRequest


class RoadWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's worker with threads, for connections that lanes hand over, and get back when they are idle.

    Each kind of work has threads of its own. Connections on which nothing has been sent yet take no thread, and clients
    that stop in the middle of a request are not logged.
    """

    def init_process(self) -> None:
        """Set up the worker process; gunicorn calls this after the fork."""
        self.log.error_log.addFilter(RefusalLog())
        self._incoming = socket.socket(fileno=int(os.environ["SHOAL_RECEIVE_FD"]))
        self._lanes = handover.Sender(socket.socket(fileno=int(os.environ["SHOAL_SEND_FD"])))
        self._returned = socket.socket(fileno=int(os.environ["SHOAL_RETURNED_FD"]))
        self._pools = {
            work: ThreadPoolExecutor(num_threads, f"shoal-{work.value}") for work, num_threads in NUM_THREADS.items()
        }
        super().init_process()

    def run(self) -> None:
        """Serve the connections that lanes hand over, and the listener for metrics."""
        super().run()
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        for each in (self._incoming, self._lanes, self._returned):
            each.close()

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begin or stop to accept connections, and to receive those that lanes hand over.

        gunicorn stops it while the worker has as many connections as it may have. Without metrics no connection is
        accepted; there is a listener then only because gunicorn insists on one.
        """
        is_taking = self._incoming in self.poller.get_map()
        if enabled and not is_taking:
            self.poller.register(self._incoming, selectors.EVENT_READ, self._take_over)
        elif is_taking and not enabled and self.alive:  # requests that come while the worker ends are still answered
            self.poller.unregister(self._incoming)
        if os.environ["SHOAL_ACCEPTS"] == "1":
            super().set_accept_enabled(enabled)
        self._accepting = enabled

    def _take_over(self, incoming: socket.socket) -> bool:
        received = handover.receive(incoming)
        if received is None:
            return False
        self._serve_lent(*received)
        return True

    def _serve_lent(self, accepted: socket.socket, data: bytes) -> None:
        try:
            connection = LentConnection(self.cfg, accepted, accepted.getpeername(), accepted.getsockname())
        except OSError:  # its client hung up on the way
            accepted.close()
            return
        connection.init()
        connection.parser.unreader.unread(data)
        self.nr_conns += 1
        self.enqueue_req(connection)

    def enqueue_req(self, conn: Any) -> None:
        """Give a connection on which a request has begun to a thread for its kind of work; others take no thread
        while they wait."""
        data = _seen_of(conn)
        if not data and not (conn.initialized or conn.data_ready):
            conn.sock.setblocking(False)
            conn.timeout = time.monotonic() + self.cfg.keepalive
            self.pending_conns.append(conn)
            self.poller.register(conn.sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))
            return
        pool: Any = self._pools.get(work_of(data, is_tunnel=conn.sock.family == socket.AF_UNIX), self.tpool)
        future = pool.submit(self.handle, conn)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def _flush_lanes(self, fd: int) -> None:
        self._lanes.flush()
        if not self._lanes.wants_to_write:
            self.poller.unregister(fd)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Give a lane's connection back to the lane, unless its client has sent more already."""
        is_idle = not fs.cancelled() and fs.exception() is None and fs.result() is True
        if isinstance(conn, LentConnection) and is_idle and self.alive and not conn.parser.unreader.buf.getvalue():
            self.nr_conns -= 1
            self._lanes.send(conn.sock, b"")
            if self._lanes.wants_to_write and self._lanes.fileno() not in self.poller.get_map():
                self.poller.register(self._lanes.fileno(), selectors.EVENT_WRITE, self._flush_lanes)
        else:
            super().finish_request(conn, fs)

    def _cap_keepalive(self, deadline: float) -> None:
        """Close idle connections earlier when the worker is to end, also those that have sent nothing yet, which
        gunicorn forgets."""
        super()._cap_keepalive(deadline)
        while self._take_over(self._incoming):
            """What lanes handed over before they ended is still answered."""
        while (returned := handover.receive(self._returned)) is not None:
            # Given back to lanes that had ended: its client may have sent a request meanwhile.
            if select.select([returned[0]], [], [], 0)[0]:
                self._serve_lent(*returned)
            else:
                returned[0].close()
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, deadline)


def _seen_of(conn: Any) -> bytes:
    """The first bytes of a connection's request, as far as they have come; they remain to be read."""
    data: bytes = conn.parser.unreader.buf.getvalue() if conn.parser is not None else b""
    if len(data) < LOOK_BYTES:
        with suppress(OSError):  # nothing has come, or the client is gone, which reading will show
            data += conn.sock.recv(LOOK_BYTES - len(data), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return data


def create() -> "WSGIApplication":
    """Connect to the supervisor and build the application."""
    set_title("road")
    os.nice(NICE)
    front_end = join("road")
    transport = PortTransport(front_end)
    transport.shared.start("shoal-port")
    hang_ups = HangUps()
    hang_ups.start()
    application = create_app(front_end.state, transport, (ParseException,), transport.count_answer)
    return mend(
        application,
        front_end.state.max_request_bytes,
        lambda caller: WatchedTransport(transport, partial(hang_ups.watch, caller)),
    )


def mend(
    application: "WSGIApplication", max_request_bytes: int, watched: "Callable[[Caller], Transport]"
) -> "WSGIApplication":
    """The application, corrected for gunicorn: connections are closed where the response says so, chunked bodies are
    bounded while they arrive, and a request is cancelled when its client hangs up."""

    def mended(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        if "HTTP_TRANSFER_ENCODING" in environ:
            bound_chunks(environ["wsgi.input"].reader, max_request_bytes)
        # gunicorn's own object for the response has the request, and says whether the response has begun.
        answer = start_response.__self__  # type: ignore[attr-defined]
        environ[HEAD_VARIABLE] = getattr(answer.req, "head", b"")
        can_be_asked = environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        caller = Caller(environ["gunicorn.socket"], lambda: can_be_asked and not answer.headers_sent)
        environ[TRANSPORT_VARIABLE] = watched(caller)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if ("Connection", "close") in headers:
                # gunicorn drops the header, for it is hop by hop, and would keep the connection open.
                answer.force_close()
            return start_response(status, headers, exc_info)

        return application(environ, start)

    return mended


def bound_chunks(reader: Any, max_request_bytes: int) -> None:
    """Make gunicorn's reader of chunked bodies refuse too many chunks, and a chunk that is announced to be larger than
    any body may be.

    gunicorn itself would wait for 2^72 announced bytes, and does not limit the number of chunks.
    """
    parse_chunk_size, read_into = reader.parse_chunk_size, reader.read_into
    num_chunks = num_read = num_extension_bytes = 0

    def counted(unreader: Any, line: bytearray) -> None:
        nonlocal num_read
        before = len(line)
        read_into(unreader, line)
        num_read += len(line) - before

    def bounded(unreader: Any, data: bytes | None = None) -> tuple[int, bytes | None]:
        """A chunk's size, and the data read beyond it, as gunicorn's function returns them. Raises
        InvalidArgumentError."""
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
    """Send the error for a request that gunicorn cannot read, as JSON; replaces gunicorn's function."""
    response = error_json(status, sentence or reason)
    (body,) = response.chunks
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    gunicorn.util.write_nonblock(sock, f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + bytes(body))


# gunicorn's workers look the function up in this module at each call.
gunicorn.util.write_error = write_error
