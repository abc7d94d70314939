"""The lane's way out: a response goes out of the worker's block at once, or as its client reads it.

A client that reads slowly must not hold a worker's block: after a second what it has not read is copied, within a bound
for all of them together. One thread, the lane's; every method says whether the connection can go on at once.
"""

import select
from collections.abc import Callable

from shoal.frontend.connection import READING, SENDING, Chunks, Connection
from shoal.frontend.response import Response
from shoal.frontend.submission import JOIN_BYTES, response_head
from shoal.shm.port import Port

#: How long an idle connection may ask again: Triton has no limit, proxies keep theirs for 60 s.
IDLE_S = 75.0
#: How long a reader may hold a worker's block before what it has not read is copied, and then before it is cut off.
HOLD_S, SEND_S = 1.0, 30.0
#: What slow readers may make the lane keep in its own memory, all together.
MAX_KEPT_BYTES = 64 * 1024 * 1024


class Outgoing:
    """Responses of all connections of a lane."""

    def __init__(self, port: Port, poller: select.epoll, close: Callable[[Connection], None]) -> None:
        self._port = port
        self._poller = poller
        self._close = close
        #: Seconds that an answered connection may stay idle; the lane lowers it when it stops.
        self.idle_s = IDLE_S
        # Changed by every method.
        self._kept_bytes = 0

    def respond(self, connection: Connection, response: Response, now_s: float) -> bool:
        """As send, for a response that has no head yet."""
        return self.send(connection, [response_head(response), *response.chunks], now_s)

    def send(self, connection: Connection, chunks: Chunks, now_s: float) -> bool:
        """Send a response: its head, alone or with all of it, then views of the block that the connection will release.

        True where the next request may follow at once.
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
        self._kept_bytes += 0 if connection.release else connection.num_unsent
        connection.stage = SENDING
        connection.deadline_s = now_s + (HOLD_S if connection.release else SEND_S)
        connection.is_quiet = True
        self._poller.modify(connection.fd, select.EPOLLOUT)
        return False

    def send_rest(self, connection: Connection, now_s: float) -> bool:
        """The socket takes more. True where the response has left and the connection goes on."""
        before = connection.num_unsent
        if not connection.send(connection.unsent, before):
            self._close(connection)
            return False
        if not connection.release:
            self._kept_bytes -= before - connection.num_unsent
            connection.deadline_s = now_s + SEND_S  # slow, but it reads
        return not connection.unsent and self._sent(connection, now_s)

    def hold_no_longer(self, connection: Connection, now_s: float) -> bool:
        """The reader is slow: the worker gets its block back. False where it has been given its time already."""
        if not connection.release:
            return False
        connection.keep_unsent()
        self._give_back(connection)
        self._kept_bytes += connection.num_unsent
        connection.deadline_s = now_s + SEND_S
        return self._kept_bytes <= MAX_KEPT_BYTES

    def release(self, connection: Connection) -> None:
        """Nothing more is sent on the connection; what it held is given back."""
        if connection.release:
            self._port.release(connection.release)
            connection.release = 0
        else:
            self._kept_bytes -= connection.num_unsent
        connection.unsent = []

    def _give_back(self, connection: Connection, *, prompt: bool = True) -> None:
        """The worker's block is not needed any more. What was held for a moment only wakes nobody."""
        if connection.release:
            self._port.release(connection.release, prompt=prompt)
            connection.release = 0

    def _sent(self, connection: Connection, now_s: float) -> bool:
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
