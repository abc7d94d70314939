"""What a lane over TLS has in each protocol: the handshakes of its clients, and certificates that are renewed."""

import select
import socket

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.lane_loop import HEAD_S, LINGER_S, ConnectionT, GunicornHandle, Lane
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.handshakes import Handshakes
from shoal.frontend.tls.tls_socket import TlsSocket


class TlsLane(Lane[ConnectionT]):
    """A lane whose connections begin with a handshake. Among the bases of a class it stands before the protocol's lane,
    which serves a connection after that."""

    def __init__(
        self, front_end: FrontEnd, gunicorn: GunicornHandle, tls: RenewedContext, alpn: str, clients: str, failed: int
    ) -> None:
        """`alpn` and `clients` as in Handshakes; `failed` is the position of the count of those that have failed among
        the port's."""
        super().__init__(front_end, gunicorn)
        self._failed = failed
        self._handshakes = Handshakes(self._poller, tls, alpn, self._greet, clients, self._count_failed)
        self._handshakes.limit(self._max_connections)

    def _count_failed(self) -> None:
        self._port.noted[self._failed] += 1

    def _renew_certificates(self) -> None:
        self._handshakes.renew_certificates()

    def _takes_tls(self, accepted: socket.socket) -> bool:
        """Whether clients speak TLS at the endpoint of a connection."""
        del accepted
        return True

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        """Begin a handshake, at whose end the connection is added."""
        if is_new and self._takes_tls(accepted):
            self._handshakes.begin(accepted, self.now_s, self.now_s + (LINGER_S if self._stops_at_s else HEAD_S))
        else:
            super()._add(accepted, data, is_new=is_new)  # type: ignore[safe-super]  # the protocol's lane comes next

    def _greet(self, client: TlsSocket) -> None:
        """Serve a client whose handshake is complete, and who may have sent more already."""
        super()._add(client, b"", is_new=True)  # type: ignore[safe-super]
        connection = self._connections.get(client.fileno())
        if connection is not None and client.has_received:
            try:
                self._serve(connection, select.EPOLLIN)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all of them
                self._give_up(connection)

    @property
    def _is_idle(self) -> bool:
        return super()._is_idle and not len(self._handshakes)

    def _on_other(self, fd: int, event: int) -> None:
        if not self._handshakes.serve(fd, self.now_s):
            super()._on_other(fd, event)

    def _finish_pass(self) -> None:
        super()._finish_pass()
        self._handshakes.end_pass()

    def _tick(self) -> None:
        super()._tick()  # type: ignore[safe-super]
        self._handshakes.expire(self.now_s)

    def _begin_to_stop(self) -> None:
        super()._begin_to_stop()  # type: ignore[safe-super]
        self._handshakes.end_by(self.now_s + LINGER_S)
