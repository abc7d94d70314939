"""The road: stock gunicorn threads and the Flask app, with one port in each process. The road can answer every request.

`create()` runs in each gunicorn worker right after the fork: it connects to the supervisor, maps the shared memory
whose descriptors the supervisor sends, and returns the WSGI application once the supervisor says that it has sent all.
The arbiter has imported this module before it forks. Where gunicorn behaves otherwise than clients of Triton expect,
this file corrects that, outside the application.
"""

# The type hints that pyright brings for gunicorn are of an older version.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false
# pyright: reportIncompatibleMethodOverride=false

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from math import inf
from typing import TYPE_CHECKING, Any

import gunicorn.util
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend import handover
from shoal.frontend.access_log import HUNG_UP, HttpExchange
from shoal.frontend.addressed_sockets import RelayedSocket, with_addresses
from shoal.frontend.front_end import join
from shoal.frontend.road.admissions import AdmissionServer
from shoal.frontend.road.arrival import MAX_CHUNKS, Framing
from shoal.frontend.road.connection import ParsedHead, RoadConnection, is_of_lane, parsed
from shoal.frontend.road.endpoints import (
    HEAD_VARIABLE,
    TRANSPORT_VARIABLE,
    Endpoints,
)
from shoal.frontend.road.hang_ups import HangUps, WatchedClient, has_left
from shoal.frontend.road.refusals import RefusalLog, endpoint_of, error_writer, refusal
from shoal.frontend.road.thread_turns import ThreadTurns, Turn
from shoal.frontend.road.transport import PortTransport, WatchedTransport
from shoal.frontend.road.uploads import Uploads
from shoal.frontend.road.work import MAX_NAMING_BYTES, Work, kind_of
from shoal.frontend.standstill import standstill_s
from shoal.frontend.state import ServerState
from shoal.frontend.upload_budget import NoUploadMemoryError
from shoal.process import ignore_supervisors_signals, return_large_blocks, set_title, unblock_end_signals
from shoal.shm.shares import MODELS_AT_ONCE

if TYPE_CHECKING:
    from datetime import timedelta

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from shoal.frontend.road.transport import Transport

#: The road's nice value, so that lanes, batcher and workers go first where cores are short: the road parses large JSON
#: for seconds (ours; measured with 60 MB of JSON on two cores: the lane's p99 is a third shorter).
NICE = 10
#: Threads by kind of work other than requests to models (ours). READING is answered at once, all others by the
#: supervisor, which loads --model-load-thread-count models at a time (load_slots.py).
NUM_THREADS = {Work.READING: 4, Work.ADMINISTRATION: 32, Work.LOADING: 32}
#: Seconds that a request has waited for a thread before its client, if it has closed its half of the connection, is
#: probed (ours: clients that wait for their response may close their half, too, and most requests do not wait so long).
PROBED_S = 1.0
#: Seconds that gunicorn waits for open connections at its end: no limit, but its setting must have one (68 years).
FOR_EVER_S = 2**31
#: Most bytes of chunk extensions in a body (ours). Clients send none; zeros before a chunk's size count as extensions.
MAX_CHUNK_EXTENSION_BYTES = 256


class RoadWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no type hints
    """gunicorn's worker with threads, for connections that lanes hand over, and get back when they are idle.

    Each kind of work has threads of its own. A request takes a thread when it has come whole. Until then the event loop
    of gunicorn's worker collects it (uploads.py).
    """

    def init_process(self) -> None:
        """Set up the worker process; gunicorn calls this after the fork."""
        return_large_blocks()
        self.log.error_log.addFilter(RefusalLog())
        self._incoming = socket.socket(fileno=int(os.environ["SHOAL_RECEIVE_FD"]))
        self._lanes = handover.Sender(socket.socket(fileno=int(os.environ["SHOAL_SEND_FD"])))
        self._returned = socket.socket(fileno=int(os.environ["SHOAL_RETURNED_FD"]))
        self._pools = {
            work: ThreadPoolExecutor(num_threads, f"shoal-{work.value}") for work, num_threads in NUM_THREADS.items()
        }
        self._turns = {work: ThreadTurns[RoadConnection](num, num) for work, num in NUM_THREADS.items()}
        # One model has at most as many threads as the operator says; all models have MODELS_AT_ONCE times as many.
        self._turns[Work.REQUEST] = ThreadTurns(MODELS_AT_ONCE * self.cfg.threads, self.cfg.threads)
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """The threads for requests to models; one model may have as many as gunicorn's setting `threads` says."""
        return ThreadPoolExecutor(MODELS_AT_ONCE * self.cfg.threads, f"shoal-{Work.REQUEST.value}")

    def init_signals(self) -> None:
        """Handle signals, also those that were blocked since the fork; gunicorn calls this before the loop begins."""
        super().init_signals()
        ignore_supervisors_signals()
        unblock_end_signals()

    def load_wsgi(self) -> None:
        """Join the supervisor and build the application; gunicorn calls this before the loop begins."""
        super().load_wsgi()
        self._is_draining = self._has_given_up = False
        self._looked_s, self._stops_at_s = 0.0, inf
        application: Any = self.wsgi
        self._application: RoadApplication = application
        if self._application.state.log_access:
            self.log.access = _log_access  # gunicorn calls this function after each request
        self._admissions = AdmissionServer(self.poller, self._application.state.key_uses)
        self._uploads = Uploads(
            self.poller,
            self._application.state,
            self._framing_of,
            self._answer,
            self._application.refusal,
            self._count_closed,
        )

    def run(self) -> None:
        """Serve the connections that lanes hand over, and the listener for metrics."""
        self._graceful_timeout_s = self.cfg.graceful_timeout
        self.cfg.set("graceful_timeout", FOR_EVER_S)  # gunicorn would count standstills as time passed
        super().run()
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        for each in (self._incoming, self._lanes, self._returned):
            each.close()

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begin or stop to accept connections, and to receive connections that lanes hand over.

        gunicorn stops accepting while the worker has as many connections as it may have. Without metrics no connection
        is accepted; there is a listener then only because gunicorn does not start without one. Where epoll takes
        no further descriptor, gunicorn's next pass tries again.
        """
        with suppress(OSError):
            self._set_accept_enabled(enabled)

    def _set_accept_enabled(self, enabled: bool) -> None:
        is_taking = self._incoming in self.poller.get_map()
        if enabled and not is_taking:
            self.poller.register(self._incoming, selectors.EVENT_READ, self._take_over)
        elif is_taking and not enabled and self.alive:  # an ending worker still answers what lanes hand over
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
        if self._admissions.take_over(accepted, data):
            return
        try:
            connection = RoadConnection(
                self.cfg, accepted, accepted.getpeername(), accepted.getsockname(), is_lent=True
            )
        except OSError:  # the client hung up on the way
            accepted.close()
            return
        self.nr_conns += 1
        self._uploads.add(connection, data, self.cfg.keepalive)

    def accept(self, listener: Any) -> None:
        """Accept a connection from a listener of the road, such as that for metrics."""
        try:
            accepted = with_addresses(listener.accept()[0])
            connection = RoadConnection(
                self.cfg, accepted, accepted.getpeername(), accepted.getsockname(), is_lent=False
            )
        except OSError:  # another process took the connection, it was reset, or no descriptor is left
            return
        self.nr_conns += 1
        self._uploads.add(connection, b"", self.cfg.keepalive)

    def _framing_of(self, connection: RoadConnection, head: bytes) -> Framing | None:
        found = parsed(head, connection)
        if found is None:
            return None
        limit = self._application.body_limit(found, connection) if found.length != 0 else 0
        if limit is None:
            return None
        return Framing(found.length, limit, found.expects_continue, self._application.state.max_request_bytes)

    def _answer(self, connection: RoadConnection) -> None:
        """Give a request that has come whole to a thread for its kind of work, now or when its model's turn comes."""
        arrival, budget = connection.arrival, self._application.state.upload_budget
        assert arrival is not None, "a request has come on it"
        body = partial(_naming_body, connection)
        connection.work, connection.group = kind_of(arrival.head, is_tunnel=connection.is_tunnel, body=body)
        connection.body_nbytes, connection.queued_s = arrival.body_nbytes, time.monotonic()
        turn = self._turns[connection.work].begin(connection, budget.limit - budget.nbytes)
        if turn is Turn.NOW:
            self._begin(connection)
        elif turn is Turn.REFUSED:
            self._uploads.refuse(connection, NoUploadMemoryError(budget.limit))

    def _begin(self, connection: RoadConnection) -> None:
        pool: Any = self._pools.get(connection.work, self.tpool)
        future = pool.submit(self.handle, connection)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, connection, done))

    def _count_closed(self, _connection: RoadConnection) -> None:
        self.nr_conns -= 1

    def handle(self, conn: Any) -> bool:
        """Answer a request, in one of the threads. True if the connection goes on.

        A request to a model is dropped if its client has gone while it waited for the thread, so that threads do not
        compute answers that no client reads.
        """
        if conn.work is Work.REQUEST and has_left(_client_of(conn)):
            self._application.count_abandoned()
            if self._application.state.log_access and not conn.is_tunnel:
                HttpExchange(conn.arrival.head, conn.address).end(time.monotonic() - conn.begun_s, HUNG_UP)
            return False
        is_kept = super().handle(conn) is True
        return is_kept and not conn.received.is_short

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Answer a request that gunicorn has parsed. Its time limit began when it had come, before this thread.

        The bytes read of a body that broke off are dropped: gunicorn's request and its reader of chunks refer to each
        other, and would keep the bytes until the collector of cycles runs.
        """
        req.came_s = conn.queued_s
        kept = False
        try:
            kept = bool(super().handle_request(req, conn))
            return kept
        finally:
            if not kept:
                req.body.buf = req.body.reader.buf = BytesIO()

    def murder_pending(self) -> None:
        """Refuse late requests, and all requests when the server ends; gunicorn calls this in each pass of its loop."""
        if self._application.state.is_draining and not self._is_draining:
            self._drain()
        now_s = time.monotonic()
        self._stops_at_s += standstill_s(self._looked_s, now_s)
        self._looked_s = now_s
        if now_s >= self._stops_at_s:
            self.nr_conns = 0  # gunicorn's loop ends when no connection is left
        self._uploads.expire()
        self._refuse_waiting((Work.REQUEST,), self._application.request_timeout_s)
        if self._application.state.gives_up and not self._has_given_up:
            self._has_given_up = True
            self._uploads.refuse_all(self._application.state.no_answer(0.0))
            self._refuse_waiting(Work, 0.0)
            self._application.refuse_all()

    def _refuse_waiting(self, works: Iterable[Work], limit_s: float) -> None:
        """Refuse the requests of these kinds that have waited for a thread for `limit_s` or longer."""
        for work in works:
            for connection in self._turns[work].expire(time.monotonic() - limit_s):
                self._uploads.refuse(connection, self._application.state.no_answer(limit_s))

    def _drain(self) -> None:
        """Give no further connection back to a lane, since the lanes are about to end; the road closes each connection
        after its next response."""
        self._is_draining = True
        self._uploads.drain()

    def _flush_lanes(self, fd: int) -> None:
        self._lanes.flush()
        if not self._lanes.wants_to_write:
            self.poller.unregister(fd)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Give a lane's connection back to the lane, unless its client has sent more already."""
        for connection in self._turns[conn.work].end(conn):
            self._begin(connection)
        self._uploads.done(conn)
        if fs.cancelled() or fs.exception() is not None or fs.result() is not True:
            self._uploads.end(conn)
        elif rest := conn.received.take_rest():
            self._uploads.add(conn, rest, self.cfg.keepalive)
        elif conn.is_lent and not self._is_draining:
            self.nr_conns -= 1
            if isinstance(conn.sock, RelayedSocket):
                conn.sock.give_back()
                return
            self._lanes.send(conn.sock, b"")
            if self._lanes.wants_to_write and self._lanes.fileno() not in self.poller.get_map():
                with suppress(OSError):  # epoll takes no more: what waits goes with the next `send`
                    self.poller.register(self._lanes.fileno(), selectors.EVENT_WRITE, self._flush_lanes)
        else:
            self._uploads.add(conn, b"", self.cfg.keepalive)

    def _cap_keepalive(self, deadline: float) -> None:
        """Drain connections because the worker is about to end, also connections on their way from or to lanes."""
        super()._cap_keepalive(deadline)
        self._looked_s = time.monotonic()
        self._stops_at_s = self._looked_s + self._graceful_timeout_s
        self._drain()
        while self._take_over(self._incoming):
            pass  # connections that lanes handed over before they ended are still answered
        while returned := self._take_back():
            # The last response did not announce the end of the connection, so the client may be sending a request.
            self._serve_lent(*returned)

    def _take_back(self) -> tuple[socket.socket, bytes] | None:
        """A connection that was given back to lanes, which ended before they received it; None if there is none."""
        self._lanes.flush()  # connections that still wait in `_lanes` can be received then, too
        return handover.receive(self._returned)


def _log_access(response: Any, _request: Any, environ: "WSGIEnvironment", took: "timedelta") -> None:
    """Log a request that a thread has answered; a gRPC lane logs its calls itself. A request that gunicorn refuses has
    no head in `environ`, and gets no line."""
    head = environ.get(HEAD_VARIABLE)
    if head is not None and not is_of_lane(environ["gunicorn.socket"]):
        exchange = HttpExchange(head, environ["REMOTE_ADDR"])
        exchange.nbytes = response.sent
        has_left = isinstance(sys.exc_info()[1], OSError)  # raised where gunicorn could not send
        exchange.end(took.total_seconds(), HUNG_UP if has_left else int((response.status or "500")[:3]))


def _naming_body(connection: RoadConnection) -> bytes:
    """The body of a request that has come; b"" if it is chunked, or too long to be read for the model that it names."""
    arrival = connection.arrival
    assert arrival is not None, "a request has come on it"
    nbytes = 0 if arrival.framing is None else arrival.framing.length or 0
    begins = len(arrival.head)
    return connection.received.peek()[begins : begins + nbytes] if 0 < nbytes <= MAX_NAMING_BYTES else b""


def _client_of(connection: RoadConnection) -> WatchedClient:
    """The client of a request that a thread is about to begin."""
    arrival = connection.arrival
    assert arrival is not None, "a request has come on it"
    has_waited = time.monotonic() >= connection.queued_s + PROBED_S
    is_whole = has_waited and arrival.is_complete and not connection.is_tunnel
    can_be_probed = is_whole and arrival.head.split(b"\r\n", 1)[0].endswith(b" HTTP/1.1")
    return WatchedClient(connection.sock, lambda: can_be_probed)


def create() -> "RoadApplication":
    """Connect to the supervisor and build the application."""
    set_title("road")
    os.nice(NICE)
    front_end = join("road")
    transport = PortTransport(front_end)
    transport.shared.start("shoal-port")
    hang_ups = HangUps()
    hang_ups.start()
    state = front_end.state
    endpoints = Endpoints(state, transport, transport.count_answer, (ParseException,))
    application = endpoints.scraped(LateApplication(partial(_flask_application, endpoints)))
    # gunicorn's workers look `write_error` up in gunicorn.util at each call.
    gunicorn.util.write_error = error_writer(endpoints, gunicorn.util.write_nonblock)

    def watched(client: WatchedClient, came_s: float | None) -> WatchedTransport:
        return WatchedTransport(transport, partial(hang_ups.watch, client), came_s)

    mended = mend(application, state, watched)
    return RoadApplication(
        mended, endpoints, transport.refuse_all, transport.count_abandoned, transport.request_timeout_s
    )


def _flask_application(endpoints: Endpoints) -> "WSGIApplication":
    from shoal.frontend.road.app import create_app  # with the first request: Flask, Jinja and Werkzeug take 8 MiB

    return create_app(endpoints)


class LateApplication:
    """A WSGI application that is made with the first request, in the thread of that request."""

    def __init__(self, make: "Callable[[], WSGIApplication]") -> None:
        self._make = make
        self._making = threading.Lock()
        self._made: WSGIApplication | None = None  # changed by the first call

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        application = self._made
        if application is None:
            with self._making:
                application = self._made = self._made or self._make()
        return application(environ, start_response)


class RoadApplication:
    """The WSGI application, and the functions that the event loop calls before a request has a thread."""

    def __init__(
        self,
        application: "WSGIApplication",
        endpoints: Endpoints,
        refuse_all: Callable[[], None],
        count_abandoned: Callable[[], None],
        request_timeout_s: float = 60.0,
    ) -> None:
        self._application = application
        self.state = endpoints.state
        self._endpoints = endpoints
        self.request_timeout_s = request_timeout_s  # how long a request may wait for a thread and its answer together
        self.refuse_all = refuse_all  # refuses all requests that wait for a model
        self.count_abandoned = count_abandoned  # counts a request whose client has gone before it was begun

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        return self._application(environ, start_response)

    def body_limit(self, head: ParsedHead, connection: RoadConnection) -> int | None:
        """The most bytes that a request's body may have; None if the request is answered without its body."""
        if connection.is_tunnel:
            return self.state.max_request_bytes
        endpoint = endpoint_of(self._endpoints, connection)
        return self._endpoints.body_limit(endpoint, head.method, head.target, head.headers, connection.address)

    def refusal(self, connection: RoadConnection, error: ShoalError) -> bytes:
        """The bytes of a response that refuses a connection's request, whole or not (refusals.py)."""
        return refusal(self._endpoints, connection, error)


def mend(
    application: "WSGIApplication", state: ServerState, watched: "Callable[[WatchedClient, float | None], Transport]"
) -> "WSGIApplication":
    """The application, corrected for gunicorn: connections are closed where the response says so or the road drains,
    chunked bodies are bounded while they arrive, and a request is cancelled when its client hangs up."""

    def mended(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        if "HTTP_TRANSFER_ENCODING" in environ:
            bound_chunks(environ["wsgi.input"].reader, state.max_request_bytes)
        # `start_response` is a method of gunicorn's object for the response, which also has the request.
        answer = start_response.__self__  # type: ignore[attr-defined]
        environ[HEAD_VARIABLE] = getattr(answer.req, "head", b"")
        can_be_probed = environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        client = WatchedClient(environ["gunicorn.socket"], lambda: can_be_probed and not answer.headers_sent)
        environ[TRANSPORT_VARIABLE] = watched(client, getattr(answer.req, "came_s", None))

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if ("Connection", "close") in headers or state.is_draining:
                # gunicorn drops `Connection`, a hop-by-hop header, and would keep the connection open.
                answer.force_close()
            return start_response(status, headers, exc_info)

        return application(environ, start)

    return mended


def bound_chunks(reader: Any, max_request_bytes: int) -> None:
    """Make gunicorn's reader of chunked bodies refuse too many chunks or bytes of chunk extensions, and a chunk that is
    announced to be larger than any body may be.

    gunicorn itself would wait for 2^72 announced bytes, and does not limit the number of chunks or extensions.
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
        if rest is not None:  # None after the last chunk, with which gunicorn reads the trailers, too
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
