"""The requests that are arriving on the road: an event loop collects each request, and only a whole request takes a
thread.

A head may take HEAD_S from its first byte, a body --upload-timeout-secs and a second more for each --min-upload-rate
bytes that have come. All requests share the memory of --max-upload-mib (frontend/upload_budget.py). A connection that
is refused, or ends with a response, is closed when its client has closed it, or after LINGER_S: a connection that is
closed earlier, with bytes unread, is reset, and its client could lose the response (RFC 9112, section 9.6). One thread,
the event loop's.
"""

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from shoal.errors import ShoalError
from shoal.frontend.lane_loop import HEAD_LATE, HEAD_S
from shoal.frontend.response import CONTINUE
from shoal.frontend.road.arrival import Arrival, Framing
from shoal.frontend.road.connection import RoadConnection
from shoal.frontend.state import ServerState
from shoal.frontend.upload_budget import NoUploadMemoryError, UploadTimeoutError, UploadTooLargeError

#: Most bytes of one read: chunks of one byte each in 64 KiB keep the loop busy for 60 ms (measured).
READ_BYTES = 64 * 1024
#: Seconds that a connection which ends waits for its client to close it, and that an idle connection of an ending road
#: waits for a request (gunicorn's number).
LINGER_S = 2.0
#: Seconds between two checks of deadlines.
_TICK_S = 0.5


class Uploads:
    """All connections that wait for a request, or for their end."""

    def __init__(
        self,
        poller: selectors.BaseSelector,
        state: ServerState,
        judge: Callable[[RoadConnection, bytes], Framing | None],
        arrived: Callable[[RoadConnection], None],
        refusal: Callable[[RoadConnection, ShoalError], bytes],
        closed: Callable[[RoadConnection], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`judge` returns how a request's body is framed (see arrival.Judge). `arrived` is called with a connection
        whose request has come, `closed` with a connection that was closed here. `refusal` makes the response that
        refuses a request (refusals.py)."""
        self._poller = poller
        self._judge = judge
        self._arrived = arrived
        self._refusal = refusal
        self._closed = closed
        self._now_s = now_s
        self._budget = state.upload_budget
        self._pace = state.upload_pace
        # Changed as connections come, wait and end, and by `drain`.
        self._waiting: set[RoadConnection] = set()  # connections that wait for a request or the rest of one
        self._lingering: set[RoadConnection] = set()  # connections that wait for their client to close them
        self._ticks_s = 0.0
        self._most_idle_s = float("inf")  # the longest that a connection may wait for its next request

    def add(self, connection: RoadConnection, data: bytes, idle_s: float) -> None:
        """Wait for the next request on a connection, of which `data` has come; at most `idle_s` for its first byte. The
        connection is closed if epoll takes no further descriptor (fs.epoll.max_user_watches)."""
        now_s = self._now_s()
        connection.sock.setblocking(False)
        connection.arrival = Arrival(partial(self._judge, connection))
        connection.begun_s = 0.0
        connection.deadline_s = now_s + min(idle_s, self._most_idle_s)
        try:
            self._poller.register(connection.sock, selectors.EVENT_READ, partial(self._read, connection))
        except OSError:
            self._close(connection)
            return
        self._waiting.add(connection)
        if data:
            self._take(connection, data)

    def done(self, connection: RoadConnection) -> None:
        """Stop counting the bytes of a connection's request, which was answered."""
        self._budget.remove(connection)

    def end(self, connection: RoadConnection) -> None:
        """Close a connection on which a response has been sent, once its client has closed it or LINGER_S have
        passed. If the response failed halfway, gunicorn has closed the socket already."""
        if connection.sock.fileno() < 0:
            self._close(connection)
            return
        connection.sock.setblocking(False)
        self._linger(connection)

    def drain(self) -> None:
        """From now on a connection waits at most LINGER_S for its next request, which its client may have sent already,
        since the last response did not announce the connection's end."""
        self._most_idle_s = LINGER_S
        ends_s = self._now_s() + LINGER_S
        for connection in self._waiting:
            if not connection.begun_s:
                connection.deadline_s = min(connection.deadline_s, ends_s)

    def refuse_all(self, error: ShoalError) -> None:
        """Refuse the requests that have not come whole, and close idle connections."""
        for connection in list(self._waiting):
            if connection.begun_s:
                self.refuse(connection, error)
            else:
                self._close(connection)

    def expire(self) -> None:
        """Refuse requests whose time is over, and close idle and lingering connections."""
        now_s = self._now_s()
        if now_s < self._ticks_s:
            return
        self._ticks_s = now_s + _TICK_S
        for connection in [each for each in self._waiting if each.deadline_s <= now_s]:
            self._expire(connection, now_s)
        for connection in [each for each in self._lingering if each.deadline_s <= now_s]:
            self._close(connection)

    def _expire(self, connection: RoadConnection, now_s: float) -> None:
        assert connection.arrival is not None, "it waits for a request"
        if not connection.begun_s:
            self._close(connection)
            return
        nbytes = connection.arrival.body_nbytes
        if not connection.arrival.head:
            error = UploadTimeoutError(HEAD_LATE)
        elif now_s >= (deadline_s := self._body_deadline_s(connection)):
            error = self._pace.too_slow("the request body", nbytes, now_s - connection.begun_s)
        else:
            connection.deadline_s = deadline_s
            return
        self.refuse(connection, error)

    def _body_deadline_s(self, connection: RoadConnection) -> float:
        if connection.is_tunnel:  # the lane has the call's deadline
            return float("inf")
        assert connection.arrival is not None, "it waits for a request"
        return connection.begun_s + self._pace.allowed_s(connection.arrival.body_nbytes)

    # --- bytes come in ---

    def _read(self, connection: RoadConnection, sock: socket.socket) -> None:
        if sock.fileno() < 0:  # an earlier event of this turn of the loop has closed the connection
            return
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if connection in self._lingering:
            if not data:
                self._close(connection)
        elif data:
            self._take(connection, data)
        elif connection.begun_s:
            self._dispatch(connection)  # the request was cut short: gunicorn refuses it
        else:
            self._close(connection)

    def _take(self, connection: RoadConnection, data: bytes) -> None:
        arrival, budget = connection.arrival, self._budget
        assert arrival is not None, "it waits for a request"
        if not connection.begun_s:
            connection.begun_s = self._now_s()
            connection.deadline_s = connection.begun_s + HEAD_S
        had_head = bool(arrival.head)
        connection.received.push(data)
        budget.add(connection, connection.address, len(data))
        arrival.add(data)
        if arrival.is_complete:
            self._dispatch(connection)
        elif arrival.head and not had_head:
            self._begin_body(connection, arrival)
        while isinstance(victim := budget.excess(), RoadConnection):
            assert victim.arrival is not None, "it waits for a request"
            alone = victim.arrival.body_nbytes > budget.limit
            self.refuse(
                victim,
                UploadTooLargeError(victim.arrival.body_nbytes, budget.limit)
                if alone
                else NoUploadMemoryError(budget.limit),
            )

    def _begin_body(self, connection: RoadConnection, arrival: Arrival) -> None:
        framing = arrival.framing
        assert framing is not None, "a request without a body is complete"
        connection.deadline_s = self._body_deadline_s(connection)
        if framing.length is not None and framing.length > self._budget.limit:
            self.refuse(connection, UploadTooLargeError(framing.length, self._budget.limit))
        elif framing.expects_continue and not arrival.body_nbytes:
            with suppress(OSError):  # the client is gone, or does not read; it may send its body anyway
                connection.sock.send(CONTINUE)

    def _dispatch(self, connection: RoadConnection) -> None:
        self._forget(connection)
        self._budget.finish(connection)
        self._arrived(connection)

    # --- connections end ---

    def refuse(self, connection: RoadConnection, error: ShoalError) -> None:
        """Refuse a request, whole or not, and end its connection."""
        self._forget(connection)
        with suppress(OSError):  # the client does not read, or is gone
            connection.sock.send(self._refusal(connection, error))
        self._linger(connection)

    def _linger(self, connection: RoadConnection) -> None:
        """Wait for the client to close a connection; bytes that the client still sends are dropped."""
        connection.received.take_rest()
        self._budget.remove(connection)
        try:
            connection.sock.shutdown(socket.SHUT_WR)
            self._poller.register(connection.sock, selectors.EVENT_READ, partial(self._read, connection))
        except OSError:  # the client is gone
            self._close(connection)
            return
        connection.deadline_s = self._now_s() + LINGER_S
        self._lingering.add(connection)

    def _forget(self, connection: RoadConnection) -> None:
        if connection in self._waiting or connection in self._lingering:
            self._waiting.discard(connection)
            self._lingering.discard(connection)
            self._poller.unregister(connection.sock)

    def _close(self, connection: RoadConnection) -> None:
        self._forget(connection)
        self._budget.remove(connection)
        connection.arrival = None  # ends a cycle of references (see Arrival)
        connection.sock.close()
        self._closed(connection)
