"""The gRPC lane as a gunicorn worker."""

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane import LaneWorker
from shoal.frontend.lane_loop import GunicornHandle
from shoal.frontend.tls import context


class GrpcLaneWorker(LaneWorker):
    """A gunicorn worker that is a gRPC lane."""

    protocol = "grpc"

    def make_lane(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> GrpcLane:
        """A lane for plain text, or for TLS."""
        tls = context.read_in_lane(self.protocol)
        if tls is None:
            return GrpcLane(front_end, gunicorn)
        from shoal.frontend.grpc.tls_lane import GrpcTlsLane  # here, since it imports ssl: for TLS only

        return GrpcTlsLane(front_end, gunicorn, tls)
