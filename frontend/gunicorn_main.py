"""gunicorn as the supervisor starts it (python -m shoal.frontend.gunicorn_main); settings are in gunicorn_conf.py."""

import os
from typing import Any

from shoal.frontend.late_modules import imported_late

with imported_late():
    import gunicorn.workers.base
    import gunicorn.workers.gthread
    from gunicorn.app.wsgiapp import WSGIApplication
    from gunicorn.workers.workertmp import WorkerTmp

    from shoal.frontend.arbiter import FrontEndArbiter


class Application(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's own application, without its change of `sys.path`."""

    def run(self) -> None:
        FrontEndArbiter(self).run()

    def chdir(self) -> None:
        """Do nothing, so that the working directory stays out of `sys.path`: no file there may replace a module."""


class Heartbeat(WorkerTmp):  # type: ignore[misc]
    """The file whose modification time shows the arbiter that a worker is alive: the file is in memory, without a name.
    gunicorn's own file has a name for a moment, and stays on the disk if the arbiter is killed in that moment."""

    def __init__(self, _settings: Any) -> None:
        self._tmp = os.fdopen(os.memfd_create("heartbeat"), "w+b", 0)


def main() -> None:
    """Run an arbiter, and each worker that it forks; ends by SystemExit."""
    gunicorn.workers.base.WorkerTmp = Heartbeat  # pyright: ignore[reportAttributeAccessIssue]  # hints of an older version
    Application(prog="gunicorn").run()


if __name__ == "__main__":
    main()
