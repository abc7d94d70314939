"""gRPC on a lane over TLS: a connection's handshake first, and from then on what the plain lane does.

A handshake costs the lane up to a millisecond, and memory until its end. So their steps in one pass of the loop are
bounded, as are their number at once and their time. A client has no place among connections before its handshake ends.
"""

import logging
import select
import socket
import ssl
from collections.abc import Callable

from shoal.frontend.connection_sources import MAX_ACCEPTED
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.grpc.tls_socket import TlsSocket
from shoal.frontend.lane_loop import HEAD_S, LINGER_S, GunicornHandle

_log = logging.getLogger("shoal")

#: For this many connections that a lane may have, one client may be in its handshake (ours). One client more, and the
#: oldest handshake is closed: clients that stall must not keep others waiting.
_CONNECTIONS_PER_HANDSHAKE = 10
#: Steps of handshakes in one pass of the loop: a handshake has two, so they keep up with the connections that a pass
#: accepts. Further steps wait for the next pass, which comes at once.
_MAX_STEPS = 2 * MAX_ACCEPTED
#: The log has one line for all handshakes that failed within this time.
_LOG_S = 1.0


class TlsLane(GrpcLane):
    """Every gRPC connection of one process, over TLS."""

    def __init__(
        self,
        front_end: FrontEnd,
        gunicorn: GunicornHandle,
        context: ssl.SSLContext,
        read_context: "Callable[[], ssl.SSLContext | None]" = lambda: None,
    ) -> None:
        """`context` is of the files as they were when the arbiter read them, `read_context` reads them again: None, or
        OSError, leaves the context as it is."""
        super().__init__(front_end, gunicorn)
        self._context = context
        self._read_context = read_context
        self._max_handshakes = max(1, self._max_connections // _CONNECTIONS_PER_HANDSHAKE)
        # Changed by every pass of the loop.
        self._handshakes: dict[int, TlsSocket] = {}  # by descriptor, the oldest first
        self._num_steps = 0
        self._failures = Failures()

    def _renew_certificates(self) -> None:
        try:
            self._context = self._read_context() or self._context
        except OSError as error:
            _log.error("%s. The certificates that were read before stay in force", error)

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        """Begin a handshake, at whose end the connection is added."""
        if len(self._handshakes) >= self._max_handshakes:
            self._fail(next(iter(self._handshakes.values())), "too many clients were in their handshakes")
        client = TlsSocket(accepted, self._context, self.now_s + (LINGER_S if self._stops_at_s else HEAD_S))
        self._handshakes[client.fileno()] = client
        self._poller.register(client.fileno(), select.EPOLLIN)

    @property
    def _is_idle(self) -> bool:
        return super()._is_idle and not self._handshakes

    def _on_other(self, fd: int, event: int) -> None:
        client = self._handshakes.get(fd)
        if client is None:
            super()._on_other(fd, event)
        elif self._num_steps < _MAX_STEPS:  # else the event comes again
            self._num_steps += 1
            self._shake_hands(client)

    def _shake_hands(self, client: TlsSocket) -> None:
        try:
            is_complete = client.shake_hands()
        except OSError as error:
            self._fail(client, str(error))
            return
        if not is_complete:
            self._poller.modify(client.fileno(), select.EPOLLIN | (select.EPOLLOUT if client.has_unsent else 0))
            return
        self._end_handshake(client)
        super()._add(client, b"", is_new=True)
        if client.has_received:
            connection = self._connections[client.fileno()]
            try:
                self._read(connection)
            except Exception:  # noqa: BLE001  the rim: a fault of ours costs one connection, not all of them
                self._give_up(connection)

    def _end_handshake(self, client: TlsSocket) -> None:
        del self._handshakes[client.fileno()]
        self._poller.unregister(client.fileno())

    def _fail(self, client: TlsSocket, reason: str) -> None:
        """Close the connection of a client whose handshake has failed; one that never said anything goes unnoticed."""
        self._end_handshake(client)
        if client.has_spoken:
            self._failures.add(client, reason, self.now_s)
        client.close()

    def _finish_pass(self) -> None:
        super()._finish_pass()
        self._num_steps = 0

    def _tick(self) -> None:
        super()._tick()
        for client in list(self._handshakes.values()):
            if client.handshake_ends_s <= self.now_s:
                self._fail(client, "it was not complete in time")
        self._failures.log(self.now_s)

    def _begin_to_stop(self) -> None:
        super()._begin_to_stop()
        for client in self._handshakes.values():
            client.handshake_ends_s = min(client.handshake_ends_s, self.now_s + LINGER_S)


class Failures:
    """The handshakes that have failed, for the log."""

    def __init__(self) -> None:
        # Changed by add and log.
        self._num = 0
        self._last = ""
        self._logged_s = 0.0

    def add(self, client: TlsSocket, reason: str, now_s: float) -> None:
        """Count a failed handshake; `reason` is a clause about it."""
        try:
            address = client.getpeername()[0]
        except OSError:  # gone already
            address = "a client that has gone"
        self._num += 1
        self._last = f"the last from {address}: {reason}"
        self.log(now_s)

    def log(self, now_s: float) -> None:
        """Log their number and the last one, at most once a second."""
        if self._num and now_s - self._logged_s >= _LOG_S:
            _log.warning("TLS handshakes of gRPC's clients that failed: %d, %s", self._num, self._last)
            self._num, self._logged_s = 0, now_s
