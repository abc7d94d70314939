"""The TLS handshakes that are under way on one lane.

A handshake costs the lane up to a millisecond, and memory until its end. So three things are bounded: the steps of
handshakes in one pass of the loop, the handshakes at once, and the time of each handshake. One thread, the lane's.
"""

import logging
import select
import socket
from collections.abc import Callable

from shoal.frontend.access_log import address_of
from shoal.frontend.connection_sources import MAX_ACCEPTED
from shoal.frontend.counted_warning import CountedWarning
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.tls_socket import TlsSocket

_log = logging.getLogger("shoal")

#: A lane has at most one handshake for so many connections that it may have (ours). When one more begins, the oldest
#: handshake is closed, so that clients that stall do not keep others waiting.
_CONNECTIONS_PER_HANDSHAKE = 10
#: Steps of handshakes in one pass of the loop: a handshake has two, so handshakes keep up with the connections that a
#: pass accepts. Further steps wait for the next pass, which comes at once.
_MAX_STEPS = 2 * MAX_ACCEPTED


class Handshakes:
    """Clients of one lane that are in their handshakes."""

    def __init__(
        self,
        poller: select.epoll,
        tls: RenewedContext,
        alpn: str,
        completed: Callable[[TlsSocket], None],
        clients: str,
        max_connections: int,
        num_failed: memoryview,
    ) -> None:
        """`completed` is called with the socket of a client whose handshake is complete, which `poller` no longer
        watches; the handshake fails unless it has agreed on the protocol `alpn` ("": any). `clients` is what
        the log calls them. A lane of `max_connections` has at most a part of that number in handshakes. The first word
        of `num_failed` counts the handshakes that have failed, except those of clients that never sent anything.
        """
        self._poller = poller
        self._tls = tls
        self._alpn = alpn
        self._max_num = max(1, max_connections // _CONNECTIONS_PER_HANDSHAKE)
        self._completed = completed
        self._num_failed = num_failed
        # Changed as handshakes begin, go on and end.
        self._open: dict[int, TlsSocket] = {}  # by descriptor, the oldest first
        self._num_steps = 0
        self._failures = CountedWarning(f"TLS handshakes of {clients} that failed: %d, the last from ")

    def __len__(self) -> int:
        return len(self._open)

    def renew_certificates(self) -> None:
        """Have the certificates' files read again, for later handshakes."""
        self._tls.renew()

    def begin(self, accepted: socket.socket, now_s: float, ends_s: float) -> None:
        """Begin a handshake, which is given up at `ends_s`. The TLS socket takes over the descriptor of `accepted`."""
        if len(self._open) >= self._max_num:
            oldest = next(iter(self._open.values()))
            self._fail(oldest, "too many clients were in their handshakes", now_s)
        client = TlsSocket(accepted, self._tls.context, ends_s, self._alpn)
        try:
            self._poller.register(client.fileno(), select.EPOLLIN)
        except OSError as error:  # epoll takes no further descriptor
            self._failures.add(now_s, f"{address_of(client) or 'a client that has gone'}: {error}")
            client.close()
            return
        self._open[client.fileno()] = client

    def serve(self, fd: int, now_s: float) -> bool:
        """Continue the handshake of the client with this descriptor; False if no client here has it."""
        client = self._open.get(fd)
        if client is None:
            return False
        if self._num_steps < _MAX_STEPS:  # else epoll reports the event again in the next pass
            self._num_steps += 1
            self._shake_hands(client, now_s)
        return True

    def _shake_hands(self, client: TlsSocket, now_s: float) -> None:
        try:
            is_complete = client.shake_hands()
        except OSError as error:
            self._fail(client, str(error), now_s)
            return
        if is_complete:
            self._forget(client)
            self._completed(client)
        else:
            self._poller.modify(client.fileno(), select.EPOLLIN | (select.EPOLLOUT if client.has_unsent else 0))

    def _forget(self, client: TlsSocket) -> None:
        del self._open[client.fileno()]
        self._poller.unregister(client.fileno())

    def _fail(self, client: TlsSocket, reason: str, now_s: float) -> None:
        """Close the connection of a client whose handshake has failed; a client that never sent a byte is not
        logged."""
        self._forget(client)
        if client.has_spoken:
            self._num_failed[0] += 1
            self._failures.add(now_s, f"{address_of(client) or 'a client that has gone'}: {reason}")
        client.close()

    def end_pass(self) -> None:
        """Allow _MAX_STEPS steps in the next pass of the loop."""
        self._num_steps = 0

    def expire(self, now_s: float) -> None:
        """Close the connections of clients whose handshakes have taken too long."""
        for client in list(self._open.values()):
            if client.handshake_ends_s <= now_s:
                self._fail(client, "it was not complete in time", now_s)
        self._failures.log(now_s)

    def end_by(self, ends_s: float) -> None:
        """Let no handshake that is under way last beyond `ends_s`."""
        for client in self._open.values():
            client.handshake_ends_s = min(client.handshake_ends_s, ends_s)

    def close(self) -> None:
        for client in list(self._open.values()):
            self._forget(client)
            client.close()
