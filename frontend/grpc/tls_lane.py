"""gRPC on a lane over TLS. After the handshake of TLS, a connection is served as on a lane for plain text."""

import socket

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane_loop import LINGER_S, GunicornHandle
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.handshakes import Handshakes
from shoal.frontend.tls.tls_socket import TlsSocket
from shoal.shm.layout import GRPC_HANDSHAKES_FAILED


class GrpcTlsLane(GrpcLane):
    """Every gRPC connection of one process, over TLS."""

    def __init__(
        self,
        front_end: FrontEnd,
        gunicorn: GunicornHandle,
        tls: RenewedContext,
    ) -> None:
        super().__init__(front_end, gunicorn)
        self._handshakes = Handshakes(
            self._poller, tls, "h2", self._admit, "gRPC's clients", self._max_connections,
            self._port.noted[GRPC_HANDSHAKES_FAILED:],
        )  # fmt: skip

    def _renew_certificates(self) -> None:
        self._handshakes.renew_certificates()

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        """Begin the handshake of a connection; the connection is added when the handshake has ended."""
        self._handshakes.begin(accepted, self.now_s, self._head_ends_s)

    def _admit(self, client: TlsSocket) -> None:
        super()._add(client, b"", is_new=True)
        connection = self._connections.get(client.fileno())
        if connection is not None and client.has_received:
            try:
                self._read(connection)
            except Exception:  # noqa: BLE001  the rim: a fault of ours costs one connection, not all of them
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
        super()._tick()
        self._handshakes.expire(self.now_s)

    def _begin_to_stop(self) -> None:
        super()._begin_to_stop()
        self._handshakes.end_by(self.now_s + LINGER_S)
