"""gunicorn as the supervisor starts it (python -m shoal.frontend.gunicorn_main); settings are in gunicorn_conf.py."""

import itertools
import os
import signal
from typing import Any

import gunicorn.workers.base
from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.workertmp import WorkerTmp

from shoal.process import END_SIGNALS


class Application(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's own application, without its change of `sys.path`."""

    def chdir(self) -> None:
        """Do nothing, so that the working directory stays out of the path: no file there may stand in for a module."""

    def run(self) -> None:
        """Run an arbiter that shows the supervisor its progress."""
        WatchedArbiter(self, int(os.environ["SHOAL_PROGRESS_FD"])).run()


class WatchedArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter, which counts the passes of its loop, one a second at least, where the supervisor reads."""

    def __init__(self, app: Application, progress_fd: int) -> None:
        super().__init__(app)
        self._progress_fd = progress_fd
        self._passes = itertools.count(1)  # changed by murder_workers, once in each pass

    def murder_workers(self) -> None:
        """Kill front ends that have stood still for too long, and count a pass of the loop."""
        os.pwrite(self._progress_fd, next(self._passes).to_bytes(8, "little"), 0)
        super().murder_workers()

    def spawn_worker(self) -> Any:
        """Fork a worker, with the signals that end it blocked until it handles them (shoal/process.py).

        Until then it has the arbiter's handlers, which put a signal into a queue that only the arbiter reads.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Heartbeat(WorkerTmp):  # type: ignore[misc]
    """The file whose modification time shows the arbiter that a worker is alive: in memory, without a name.
    gunicorn's own has a name for a moment, and keeps it for ever if the arbiter is killed in that moment."""

    def __init__(self, _settings: Any) -> None:
        self._tmp = os.fdopen(os.memfd_create("heartbeat"), "w+b", 0)


if __name__ == "__main__":
    gunicorn.workers.base.WorkerTmp = Heartbeat  # pyright: ignore[reportAttributeAccessIssue]  # hints of an older version
    Application(prog="gunicorn").run()
