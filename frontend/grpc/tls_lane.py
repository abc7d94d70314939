"""gRPC on a lane over TLS: after a connection's handshake, all is as on the plain lane."""

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.connection import GrpcConnection
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane_loop import GunicornHandle
from shoal.frontend.tls.context import RenewedContext
from shoal.frontend.tls.tls_lane import TlsLane
from shoal.shm.layout import GRPC_HANDSHAKES_FAILED


class GrpcTlsLane(TlsLane[GrpcConnection], GrpcLane):
    """Every gRPC connection of one process, over TLS."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle, tls: RenewedContext) -> None:
        super().__init__(front_end, gunicorn, tls, "h2", "gRPC's clients", GRPC_HANDSHAKES_FAILED)
