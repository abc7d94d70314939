"""The responses of a lane's connections, sent straight out of workers' blocks, at once or as fast as the clients read.

A client that reads slowly must not hold a worker's block (kept_memory.py). Only the lane's one thread calls this; the
methods that send return whether the connection can go on with its next request at once.
"""

import select
from collections.abc import Callable, Container

from shoal.frontend.access_log import HUNG_UP
from shoal.frontend.http.connection import READING, SENDING, Chunks, HttpConnection
from shoal.frontend.http.responses import JOIN_BYTES
from shoal.frontend.kept_memory import HOLD_S, SEND_S, KeptMemory, slow_reader_log
from shoal.frontend.response import Response, response_head
from shoal.shm.port import Port
from shoal.timing import Timing, as_header

#: Seconds until an idle connection is closed: Triton has no limit, proxies keep idle connections for 60 s, and should
#: be the first to close.
IDLE_S = 75.0


class OutgoingResponses:
    """Responses of all connections of a lane."""

    def __init__(self, port: Port, poller: select.epoll, close: Callable[[HttpConnection], None]) -> None:
        self._port = port
        self._poller = poller
        self._close = close
        #: Seconds that an answered connection may stay idle; the lane lowers this when it begins to stop.
        self.idle_s = IDLE_S
        self.given_up = slow_reader_log("connections")
        # Changed by every method. In this order: the count of copied bytes; the connections to which responses are
        # being sent, with the time of each response's beginning, the oldest first; the connections for whose copies
        # there was no room, each with its number of unsent bytes and the time since which that number has been the
        # same.
        self.kept = KeptMemory()
        self._sending: dict[HttpConnection, float] = {}
        self._waiting: dict[HttpConnection, tuple[int, float]] = {}

    def respond(self, connection: HttpConnection, response: Response, now_s: float) -> bool:
        """Send a response; its head is made here. Returns whether the next request may follow at once."""
        return self.send(connection, [response_head(response), *response.chunks], now_s)

    def send(self, connection: HttpConnection, chunks: Chunks, now_s: float) -> bool:
        """Send a response: its head, alone or with all of the body, then views of the worker's block, which the
        connection releases once they are sent.

        Returns whether the next request may follow at once.
        """
        if not connection.keep_alive:
            chunks[0] = bytes(chunks[0]).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        if connection.trace is not None:
            connection.trace.sending()
            if connection.trace.is_shown:
                chunks[0] = bytes(chunks[0]).replace(b"\r\n", _timing_field(connection.trace.timing()), 1)
        nbytes = len(chunks[0])
        if len(chunks) > 1:
            nbytes = sum(map(len, chunks))
            if nbytes <= JOIN_BYTES:
                chunks = [b"".join(chunks)]
        if connection.exchange is not None:
            connection.exchange.sending(chunks[0], nbytes)
        if len(chunks) == 1 and connection.release:
            self._port.release(connection.release, prompt=False)
            connection.release = 0
        if not connection.send(chunks, nbytes):
            self._close(connection)
            return False
        if not connection.unsent:
            if connection.release:
                self._port.release(connection.release, prompt=False)
                connection.release = 0
            return self.sent(connection, now_s)
        self.kept.nbytes += 0 if connection.release else connection.num_unsent
        self.begin_rest(connection, now_s)
        return False

    def begin_rest(self, connection: HttpConnection, now_s: float) -> None:
        """Wait until the socket takes the rest of a response; unsent bytes that do not lie in a worker's block must
        have been counted as kept."""
        self._sending[connection] = now_s
        connection.stage = SENDING
        connection.deadline_s = now_s + (HOLD_S if connection.release else SEND_S)
        connection.is_quiet = True
        self._poller.modify(connection.fd, select.EPOLLOUT)

    def send_rest(self, connection: HttpConnection, now_s: float) -> bool:
        """Continue sending when the socket takes more. Returns whether the response has left and the connection goes
        on."""
        before = connection.num_unsent
        if not connection.send(connection.unsent, before):
            self._close(connection)
            return False
        if not connection.release:
            self.kept.nbytes -= before - connection.num_unsent
            connection.deadline_s = now_s + SEND_S  # a slow client that reads gets more time
        if connection.unsent:
            return False
        self._forget(connection)
        return self.sent(connection, now_s)

    def hold_no_longer(self, connection: HttpConnection, now_s: float) -> bool:
        """Copy the unsent rest of a slow reader's response and release the worker's block, if there is room for the
        copy.

        Returns false if the reader has taken nothing for too long, so that its connection is to be closed.
        """
        if not connection.release:
            return False
        if self._keep(connection, now_s):
            return True
        connection.deadline_s = now_s + HOLD_S
        num_unsent = connection.num_unsent
        num_before, since_s = self._waiting.get(connection, (0, 0.0))
        if num_before != num_unsent:
            self._waiting[connection] = num_unsent, now_s
            return True
        return now_s - since_s < SEND_S

    def recall(self, segments: Container[int], now_s: float, *, is_urgent: bool) -> None:
        """Release the memory of a worker that lacks memory: copy the unsent rest of results in these segments, and
        release their blocks.

        If there is no room for a copy, and `is_urgent`, connections are closed whose responses have been on their way
        for HOLD_S, those first whose responses have taken longest.
        """
        for connection in list(self._sending):
            if not (connection.release and self._port.lies_in(connection.release, 0, segments)):
                continue
            while not self._keep(connection, now_s):
                slowest = next(iter(self._sending))
                if connection.num_unsent > self.kept.most_bytes:
                    slowest = connection  # no other connection's end would make enough room for this one
                if not is_urgent or now_s - self._sending[slowest] < HOLD_S:
                    break
                self._close(slowest)
                self.given_up.add(now_s)
                if slowest is connection:
                    break

    def _keep(self, connection: HttpConnection, now_s: float) -> bool:
        """Copy the unsent rest of a connection's response and release the block; returns false if there is no room
        for the copy."""
        num_unsent = connection.num_unsent
        if not self.kept.fits(num_unsent):
            return False
        connection.keep_unsent()
        self._give_back(connection)
        self.kept.nbytes += num_unsent
        connection.deadline_s = now_s + SEND_S
        return True

    def forget(self, connection: HttpConnection, now_s: float) -> None:
        """Forget a connection that ends or is handed over, and release its block or kept memory. A request that it has
        open is logged as one whose client has hung up."""
        self.release(connection)
        if connection.exchange is not None:
            connection.exchange.end(now_s - connection.begun_s, HUNG_UP)
            connection.exchange = None

    def release(self, connection: HttpConnection) -> None:
        """Forget a connection's response, sent or not, and release the block or the kept memory that it held."""
        self._forget(connection)
        if connection.release:
            self._port.release(connection.release)
            connection.release = 0
        else:
            self.kept.nbytes -= connection.num_unsent
        connection.unsent = []

    def _forget(self, connection: HttpConnection) -> None:
        self._sending.pop(connection, None)
        if self._waiting:
            self._waiting.pop(connection, None)

    def _give_back(self, connection: HttpConnection) -> None:
        """Release the worker's block; the batcher is woken for it at once."""
        if connection.release:
            self._port.release(connection.release)
            connection.release = 0

    def sent(self, connection: HttpConnection, now_s: float) -> bool:
        """End the exchange of a response that has left. Returns whether the next request may follow at once."""
        if connection.trace is not None:
            connection.trace.sent()
            connection.trace = None
        if connection.exchange is not None:
            connection.exchange.end(now_s - connection.begun_s)
            connection.exchange = None
        if connection.release:
            self.release(connection)
        if not connection.keep_alive:
            self._close(connection)
            return False
        connection.stage = READING
        connection.deadline_s = now_s + self.idle_s
        return True


def _timing_field(timing: Timing) -> bytes:
    """The header field with a request's times, with a line end in front and one behind."""
    return f"\r\nServer-Timing: {as_header(timing)}\r\n".encode("ascii")
