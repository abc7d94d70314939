"""The gRPC lane as a gunicorn worker.

Its arbiter reads the files of TLS when it starts: lanes that it forks later need them no more.
"""

import json
import os
from typing import TYPE_CHECKING, ClassVar

from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.grpc_lane import GrpcLane
from shoal.frontend.lane import LaneWorker
from shoal.frontend.lane_loop import GunicornHandle

if TYPE_CHECKING:
    import ssl


class _Tls:
    """What an arbiter has read for its lanes: the context; None where clients speak plain text."""

    files: ClassVar[str] = ""
    context: "ClassVar[ssl.SSLContext | None]" = None

    @classmethod
    def read(cls) -> "ssl.SSLContext | None":
        """The context for the files as they are now; None where clients speak plain text. Raises OSError."""
        if not cls.files:
            return None
        from shoal.tls import server_context  # here: with ssl, for lanes with TLS only

        return server_context(*json.loads(cls.files))


def read_tls_files() -> None:
    """Make the context for the files that the supervisor names, if any. Runs in the arbiter."""
    _Tls.files = os.environ.get("SHOAL_GRPC_TLS", "")
    _Tls.context = _Tls.read()


class GrpcLaneWorker(LaneWorker):
    """A gunicorn worker that is a gRPC lane."""

    protocol = "grpc"

    def make_lane(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> GrpcLane:
        """A lane for plain text, or for TLS."""
        if _Tls.context is None:
            return GrpcLane(front_end, gunicorn)
        from shoal.frontend.grpc.tls_lane import TlsLane  # here: as above

        return TlsLane(front_end, gunicorn, _Tls.context, _Tls.read)
