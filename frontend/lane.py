"""A lane as gunicorn runs it: a worker class whose processes answer in one thread, without WSGI."""

import json
import os
from functools import partial
from typing import Any, ClassVar

from gunicorn.workers.base import Worker

from shoal.control import GONE
from shoal.frontend.front_end import FrontEnd, join
from shoal.frontend.http.http_lane import HttpLane
from shoal.frontend.lane_loop import GunicornHandle, Lane
from shoal.frontend.tls import context
from shoal.process import ignore_supervisors_signals, set_title, unblock_end_signals


class LaneWorker(Worker):  # type: ignore[misc]  # gunicorn has no type hints
    """The gunicorn worker class of a lane, whose processes gunicorn's arbiter forks, signals and watches. It speaks
    HTTP; subclasses speak other protocols."""

    protocol: ClassVar[str] = "http"

    def make_lane(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> Lane[Any]:
        """The lane that this worker runs: for plain text, or for TLS."""
        tls = context.read_in_lane(self.protocol)
        if tls is None:
            return HttpLane(front_end, gunicorn)
        from shoal.frontend.http.tls_lane import HttpTlsLane  # here, since it imports ssl: for TLS only

        https = json.loads(os.environ["SHOAL_TLS_ENDPOINTS"])
        return HttpTlsLane(front_end, gunicorn, tls, https)

    def init_signals(self) -> None:
        """Handle signals from now on, and the signals that have come since the fork."""
        super().init_signals()
        ignore_supervisors_signals()
        unblock_end_signals()

    def load_wsgi(self) -> None:
        """Do nothing: a lane has no WSGI application."""

    def run(self) -> None:
        """Serve until gunicorn asks it to stop, then answer the requests that were accepted."""
        set_title(self.protocol)
        try:
            front_end = join(self.protocol)
            is_alive = partial(getattr, self, "alive")  # without a function of Python's: each pass of the loop calls it
            lane = self.make_lane(front_end, GunicornHandle(self.sockets, self.PIPE[0], is_alive, self.notify))
            lane.run(self.cfg.graceful_timeout)
            front_end.close()
        except GONE:
            os._exit(0)  # the supervisor is gone: no request can be answered any more
