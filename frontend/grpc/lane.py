"""gRPC's lane as gunicorn runs it."""

from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane import LaneWorker


class GrpcLaneWorker(LaneWorker):
    """A lane's worker that speaks gRPC."""

    protocol = "grpc"
    lane = GrpcLane
