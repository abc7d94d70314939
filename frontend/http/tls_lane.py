"""HTTP on a lane over TLS: requests that the lane answers, and connections that it relays to the road (relays.py)."""

import select
import socket
from collections.abc import Collection
from contextlib import suppress

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.http.connection import Chunks, HttpConnection
from shoal.frontend.http.http_lane import HttpLane
from shoal.frontend.http.lane_api import LaneApi
from shoal.frontend.http.relays import Relays
from shoal.frontend.lane_loop import HEAD_S, LINGER_S, GunicornHandle
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.handshakes import Handshakes
from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.shm.layout import HTTP_HANDSHAKES_FAILED

#: Receives the bytes that were decrypted beyond the end of a body: room for more than a record, as
#: TlsSocket.recvmsg_into needs it.
_BEYOND = memoryview(bytearray(64 * 1024))
#: Pieces of a response that are sent at once, 32 KiB each: other connections wait meanwhile (ours).
_MAX_PIECES = 16


class TlsHttpConnection(HttpConnection):
    """A connection over TLS, or in plain text on a lane that has both. A record may hold the end of one request and the
    beginning of the next, and one call sends only a piece of a response."""

    __slots__ = ()

    def receive(self) -> int:
        """Like `HttpConnection.receive`; bytes beyond `target`, which begin the next request, go into `buffer`."""
        assert self.target is not None
        room = len(self.target)
        try:
            received: int = self.socket.recvmsg_into([self.target, _BEYOND])[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        if received > room:
            self.buffer += bytes(_BEYOND[: received - room])
        return min(received, room)

    def send(self, chunks: Chunks, nbytes: int) -> bool:
        """Like `HttpConnection.send`, piece by piece until the socket takes no more."""
        for _ in range(_MAX_PIECES):
            if not super().send(chunks, nbytes):
                return False
            num_left = self.num_unsent
            if not num_left or num_left == nbytes:
                break
            chunks, nbytes = self.unsent, num_left
        return True


#: For this many connections that a lane may have, one may be relayed (ours): each takes three descriptors of the
#: process, and two of a road that has as many as three lanes.
_CONNECTIONS_PER_RELAY = 8


class HttpTlsLane(HttpLane):
    """Every HTTP connection of one process: over TLS at the endpoints of `https`, in plain text at others."""

    def __init__(
        self,
        front_end: FrontEnd,
        gunicorn: GunicornHandle,
        tls: RenewedContext,
        https: Collection[str],
    ) -> None:
        super().__init__(front_end, gunicorn)
        self._handshakes = Handshakes(self._poller, tls, "", self._greet, "HTTP's clients", self._count_failed)
        self._handshakes.limit(self._max_connections)
        self._https = frozenset(https)
        self._relays = Relays(
            self._poller, self._sources, max(1, self._max_connections // _CONNECTIONS_PER_RELAY), self._take_back
        )

    # --- connections come and go ---

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        if is_new and self._endpoint_of(accepted) in self._https:
            self._handshakes.begin(accepted, self.now_s, self.now_s + (LINGER_S if self._stops_at_s else HEAD_S))
        else:
            super()._add(accepted, data, is_new=is_new)

    def _make_connection(self, accepted: socket.socket, deadline_s: float, api: LaneApi) -> HttpConnection:
        return TlsHttpConnection(accepted, self.now_s, deadline_s, api)

    def _greet(self, client: TlsSocket) -> None:
        if not self._serves(client):
            self._relays.begin(client, b"", self.now_s)
            return
        super()._add(client, b"", is_new=True)
        connection = self._connections.get(client.fileno())
        if connection is not None and client.has_received:
            try:
                self._serve(connection, select.EPOLLIN)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all of them
                self._give_up(connection)

    def _serves(self, client: TlsSocket) -> bool:
        """Whether the lane itself answers at the endpoint of a connection. At others it only decrypts, for the road."""
        endpoint = self._endpoint_of(client)
        return endpoint in ("http", "openai") or endpoint in self._apis

    def _take_back(self, client: TlsSocket, data: bytes) -> None:
        """Serve a connection again that the road has given back."""
        if not self._serves(client):
            self._relays.begin(client, data, self.now_s)
            return
        super()._add(client, b"", is_new=False)
        connection = self._connections.get(client.fileno())
        if connection is not None and data:
            try:
                self._process(connection, data)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all of them
                self._give_up(connection)

    def _hand_over(self, connection: HttpConnection, data: bytes) -> None:
        client = connection.socket
        if isinstance(client, TlsSocket):
            connection.exchange = None
            self._forget(connection)
            self._relays.begin(client, data, self.now_s)
        else:
            super()._hand_over(connection, data)

    def _close(self, connection: HttpConnection) -> None:
        client = connection.socket
        if isinstance(client, TlsSocket):
            with suppress(OSError):  # the client is gone
                client.shutdown(socket.SHUT_WR)
        super()._close(connection)

    # --- the loop ---

    @property
    def _is_idle(self) -> bool:
        return super()._is_idle and not len(self._handshakes) and not len(self._relays)

    def _on_other(self, fd: int, event: int) -> None:
        if not (self._relays.serve(fd, event, self.now_s) or self._handshakes.serve(fd, self.now_s)):
            super()._on_other(fd, event)

    def _finish_pass(self) -> None:
        super()._finish_pass()
        self._handshakes.end_pass()

    def _tick(self) -> None:
        super()._tick()
        self._handshakes.expire(self.now_s)
        self._relays.expire(self.now_s)

    def _begin_to_stop(self) -> None:
        super()._begin_to_stop()
        self._handshakes.end_by(self.now_s + LINGER_S)

    def _count_failed(self) -> None:
        self._port.noted[HTTP_HANDSHAKES_FAILED] += 1

    def _renew_certificates(self) -> None:
        self._handshakes.renew_certificates()
