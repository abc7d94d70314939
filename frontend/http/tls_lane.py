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
from shoal.frontend.lane_loop import LINGER_S, GunicornHandle
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.handshakes import Handshakes
from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.shm.layout import HTTP_HANDSHAKES_FAILED

#: The buffer for bytes of the next request that are decrypted together with the end of a body. A TLS record has up to
#: 16 KiB, and TlsSocket.recvmsg_into needs room for a whole record behind the body.
_NEXT_REQUEST = memoryview(bytearray(64 * 1024))
#: The most 32 KiB pieces of one response that are encrypted and sent before other connections have their turn (ours).
_MAX_PIECES = 16
#: A lane relays at most 1/_CONNECTIONS_PER_RELAY of its connections to the road (ours): a relayed connection takes
#: three descriptors of the lane's process, and two of the road's, which has the relayed connections of all lanes.
_CONNECTIONS_PER_RELAY = 8


class HttpTlsConnection(HttpConnection):
    """A connection over TLS, or in plain text on a lane that serves TLS and plain text. A TLS record may hold the end
    of one request and the beginning of the next, and one call of the socket's `send` takes 32 KiB of a response at
    most."""

    __slots__ = ()

    def receive(self) -> int:
        """Like `HttpConnection.receive`; bytes that come behind the body, and so begin the next request, go to
        `buffer`."""
        assert self.target is not None
        room = len(self.target)
        try:
            received: int = self.socket.recvmsg_into([self.target, _NEXT_REQUEST])[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        if received > room:
            self.buffer += bytes(_NEXT_REQUEST[: received - room])
        return min(received, room)

    def send(self, chunks: Chunks, nbytes: int) -> bool:
        """Like `HttpConnection.send`, piece by piece until the socket takes no more, or _MAX_PIECES are sent."""
        for _ in range(_MAX_PIECES):
            if not super().send(chunks, nbytes):
                return False
            num_left = self.num_unsent
            if not num_left or num_left == nbytes:
                break
            chunks, nbytes = self.unsent, num_left
        return True


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
        self._handshakes = Handshakes(
            self._poller, tls, "", lambda client: self._admit(client, b"", is_new=True), "HTTP's clients",
            self._max_connections, self._port.noted[HTTP_HANDSHAKES_FAILED:],
        )  # fmt: skip
        self._https = frozenset(https)
        self._relays = Relays(
            self._poller, self._sources, max(1, self._max_connections // _CONNECTIONS_PER_RELAY),
            lambda client, data: self._admit(client, data, is_new=False),
        )  # fmt: skip

    # --- connections come and go ---

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        if is_new and self._endpoint_of(accepted) in self._https:
            self._handshakes.begin(accepted, self.now_s, self._head_ends_s)
        else:
            super()._add(accepted, data, is_new=is_new)

    def _make_connection(self, accepted: socket.socket, deadline_s: float, api: LaneApi) -> HttpConnection:
        return HttpTlsConnection(accepted, self.now_s, deadline_s, api)

    def _admit(self, client: TlsSocket, data: bytes, *, is_new: bool) -> None:
        """Serve a connection whose handshake is complete (`is_new`), or that the road has given back. `data` are bytes
        that were read from it already. A connection to an endpoint that only the road answers is relayed."""
        endpoint = self._endpoint_of(client)
        if endpoint not in ("http", "openai") and endpoint not in self._apis:
            self._relays.begin(client, data, self.now_s)
            return
        super()._add(client, b"", is_new=is_new)
        connection = self._connections.get(client.fileno())
        if connection is None:
            return
        try:
            if data:
                self._process(connection, data)
            elif client.has_received:
                self._serve(connection, select.EPOLLIN)
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

    def _renew_certificates(self) -> None:
        self._handshakes.renew_certificates()
