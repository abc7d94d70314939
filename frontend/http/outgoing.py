"""Responses of a lane, sent out of the worker's block at once, or as their clients read.

A client that reads slowly must not hold a worker's block (slow_readers.py). One thread, the lane's; the methods that
send say whether the connection can go on at once.
"""

import select
from collections.abc import Callable, Container

from shoal.frontend.http.connection import READING, SENDING, Chunks, HttpConnection
from shoal.frontend.http.submission import JOIN_BYTES, response_head
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.response import Response
from shoal.frontend.slow_readers import HOLD_S, SEND_S, SlowReaderLog
from shoal.shm.port import Port

#: Seconds until an idle connection is closed: Triton has no limit, proxies keep theirs for 60 s.
IDLE_S = 75.0


class OutgoingResponses:
    """Responses of all connections of a lane."""

    def __init__(self, port: Port, poller: select.epoll, close: Callable[[HttpConnection], None]) -> None:
        self._port = port
        self._poller = poller
        self._close = close
        #: Seconds that an answered connection may stay idle; the lane lowers it when it stops.
        self.idle_s = IDLE_S
        self.given_up = SlowReaderLog("connections")
        # Changed by every method: what was copied; the connections that are being sent to, and since when, the longest
        # first; of those that have no copy for want of room, how much was unsent, and since when.
        self._kept = KeptMemory()
        self._sending: dict[HttpConnection, float] = {}
        self._waiting: dict[HttpConnection, tuple[int, float]] = {}

    def respond(self, connection: HttpConnection, response: Response, now_s: float) -> bool:
        """Like `send`, for a response whose head is not rendered yet."""
        return self.send(connection, [response_head(response), *response.chunks], now_s)

    def send(self, connection: HttpConnection, chunks: Chunks, now_s: float) -> bool:
        """Send a response: its head, alone or with all of it, then views of the block that the connection will release.

        True if the next request may follow at once.
        """
        if not connection.keep_alive:
            chunks[0] = bytes(chunks[0]).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        if connection.trace is not None:
            connection.trace.sending()
        nbytes = sum(map(len, chunks))
        if len(chunks) > 1 and nbytes <= JOIN_BYTES:
            chunks = [b"".join(chunks)]
        if len(chunks) == 1:
            self._give_back(connection, prompt=False)
        if not connection.send(chunks, nbytes):
            self._close(connection)
            return False
        if not connection.unsent:
            self._give_back(connection, prompt=False)
            return self._sent(connection, now_s)
        self._kept.nbytes += 0 if connection.release else connection.num_unsent
        self._sending[connection] = now_s
        connection.stage = SENDING
        connection.deadline_s = now_s + (HOLD_S if connection.release else SEND_S)
        connection.is_quiet = True
        self._poller.modify(connection.fd, select.EPOLLOUT)
        return False

    def send_rest(self, connection: HttpConnection, now_s: float) -> bool:
        """Go on sending when the socket takes more. True once the response has left and the connection goes on."""
        before = connection.num_unsent
        if not connection.send(connection.unsent, before):
            self._close(connection)
            return False
        if not connection.release:
            self._kept.nbytes -= before - connection.num_unsent
            connection.deadline_s = now_s + SEND_S  # slow, but it reads
        if connection.unsent:
            return False
        self._forget(connection)
        return self._sent(connection, now_s)

    def hold_no_longer(self, connection: HttpConnection, now_s: float) -> bool:
        """Copy the rest of a slow reader's response and release the worker's block, if there is room. False if the
        reader has taken nothing for too long."""
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
        """A worker lacks memory: copy what is unsent of its results in these segments, and give them back.

        If there is no room for a copy, and `is_urgent`, the connections that have been sent to for longest end, but
        none before its time.
        """
        for connection in list(self._sending):
            if not (connection.release and self._port.lies_in(connection.release, 0, segments)):
                continue
            while not self._keep(connection, now_s):
                slowest = next(iter(self._sending))
                if connection.num_unsent > self._kept.most_bytes:
                    slowest = connection  # ending other connections would not make room for it
                if not is_urgent or now_s - self._sending[slowest] < HOLD_S:
                    break
                self._close(slowest)
                self.given_up.add(now_s)
                if slowest is connection:
                    break

    def _keep(self, connection: HttpConnection, now_s: float) -> bool:
        """Copy the unsent rest, and release its block; False if there is no room for it."""
        num_unsent = connection.num_unsent
        if not self._kept.fits(num_unsent):
            return False
        connection.keep_unsent()
        self._give_back(connection)
        self._kept.nbytes += num_unsent
        connection.deadline_s = now_s + SEND_S
        return True

    def release(self, connection: HttpConnection) -> None:
        """End a connection's response, and release what it held."""
        self._forget(connection)
        if connection.release:
            self._port.release(connection.release)
            connection.release = 0
        else:
            self._kept.nbytes -= connection.num_unsent
        connection.unsent = []

    def _forget(self, connection: HttpConnection) -> None:
        self._sending.pop(connection, None)
        if self._waiting:
            self._waiting.pop(connection, None)

    def _give_back(self, connection: HttpConnection, *, prompt: bool = True) -> None:
        """Release the worker's block. With `prompt` the batcher is woken."""
        if connection.release:
            self._port.release(connection.release, prompt=prompt)
            connection.release = 0

    def _sent(self, connection: HttpConnection, now_s: float) -> bool:
        if connection.trace is not None:
            connection.trace.sent()
            connection.trace = None
        if connection.release:
            self.release(connection)
        if not connection.keep_alive:
            self._close(connection)
            return False
        connection.stage = READING
        connection.deadline_s = now_s + self.idle_s
        return True
