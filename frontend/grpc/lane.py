"""The gRPC lane as a gunicorn worker."""

from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane import LaneWorker


class GrpcLaneWorker(LaneWorker):
    """A gunicorn worker that is a gRPC lane."""

    protocol = "grpc"
    lane = GrpcLane
