"""The gRPC lane as a gunicorn worker.

Its arbiter imports this module, and reads the files of TLS then: lanes that it forks later need them no more.
"""

import json
import os
from typing import TYPE_CHECKING

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane import LaneWorker
from shoal.frontend.lane_loop import GunicornHandle

if TYPE_CHECKING:
    import ssl


def _tls_context() -> "ssl.SSLContext | None":
    """The context for the files that the supervisor names; None where clients speak plain text."""
    files = os.environ.get("SHOAL_GRPC_TLS")
    if files is None:
        return None
    from shoal.tls import server_context  # here: with ssl, for lanes with TLS only

    return server_context(*json.loads(files))


_TLS_CONTEXT = _tls_context()


class GrpcLaneWorker(LaneWorker):
    """A gunicorn worker that is a gRPC lane."""

    protocol = "grpc"

    def make_lane(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> GrpcLane:
        """A lane for plain text, or for TLS."""
        if _TLS_CONTEXT is None:
            return GrpcLane(front_end, gunicorn)
        from shoal.frontend.grpc.tls_lane import TlsLane  # here: as above

        return TlsLane(front_end, gunicorn, _TLS_CONTEXT, _tls_context)
