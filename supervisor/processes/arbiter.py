"""One gunicorn arbiter as the supervisor sees it: started early, opened when the models are ready, started again.

One runs for each kind of front end: the lanes of HTTP, those of gRPC, the road. Each imports what its workers need
while models load, and waits for one byte before it touches its sockets. grpcio's server, which forks nothing, does the
same.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.failure_domains import run_in
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S, backoff_s

_log = logging.getLogger(__name__)

#: gunicorn looks at these and would take over what is not meant for it. (systemd's are gone already: notify.py.)
FOREIGN_VARIABLES = ("GUNICORN_CMD_ARGS", "GUNICORN_FD", "GUNICORN_PID", "WEB_CONCURRENCY")

_GUNICORN = ("shoal.frontend.gunicorn_main", "--config", "python:shoal.frontend.gunicorn_conf")


class Arbiter:
    """A process of `num_processes` front ends. `on_ended` is called when it has ended after `stop`."""

    def __init__(
        self,
        loop: EventLoop,
        role: str,
        num_processes: int,
        environment: Mapping[str, str],
        fds: Sequence[int],
        on_ended: Callable[[], None],
        module: Sequence[str] = _GUNICORN,
    ) -> None:
        self.role = role
        self.num_processes = num_processes
        self._loop = loop
        self._environment = environment
        self._fds = fds
        self._on_ended = on_ended
        self._module = module
        # Changed as the process starts, dies and stops.
        self._child: Child | None = None
        self._go_fd = -1
        self._is_open = False
        self._is_stopping = False
        self._num_deaths = 0
        self._started_s = 0.0

    def start(self) -> None:
        """Exec it; it imports what it needs and waits for `open`. Where the system refuses, it is tried again."""
        run_in(self, self._start)

    @property
    def title(self) -> str:
        """For the log."""
        return f"the front end '{self.role}'"

    def contain(self, _error: Exception) -> None:
        """As a failure domain: its processes end, and are started again."""
        if self._child is None or self._child.is_over:
            self._start_later(f"the front end '{self.role}' cannot go on")
        else:
            self._child.signal(signal.SIGKILL)

    def _start(self) -> None:
        try:
            self._execute()
        except OSError as error:
            self._start_later(f"the front end '{self.role}' cannot be started: {error}")

    def _execute(self) -> None:
        for name in FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        read_fd, go_fd = os.pipe()
        environment = {
            **self._environment,
            "SHOAL_FRONT_END": self.role,
            "SHOAL_PROCESSES": str(self.num_processes),
            "SHOAL_GO_FD": str(read_fd),
            "SHOAL_SUPERVISOR_PID": str(os.getpid()),
            # numpy's BLAS would start threads at import, and the arbiter must fork without any.
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            self._child = spawn(self._loop, self.role, self._module, environment, pass_fds=[*self._fds, read_fd])
        except OSError:
            os.close(go_fd)
            raise
        finally:
            os.close(read_fd)
        self._go_fd = go_fd
        self._child.watch(self._on_exit)
        self._started_s = self._loop.now_s()
        if self._is_open:
            self._let_go()

    def open(self) -> None:
        """The sockets listen: let it serve."""
        self._is_open = True
        if self._child is not None:
            self._let_go()

    def _let_go(self) -> None:
        go_fd, self._go_fd = self._go_fd, -1
        try:
            os.write(go_fd, b"g")
        except BrokenPipeError:
            return  # it has ended; its pidfd says so
        finally:
            os.close(go_fd)

    def stop(self) -> None:
        """Accept no more, answer what was accepted, end."""
        self._is_stopping = True
        if self._child is None:
            self._on_ended()
        elif self._is_open:
            self._child.signal(signal.SIGTERM)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """One that still waits for the word takes this as the end."""
        if self._go_fd >= 0:
            os.close(self._go_fd)
            self._go_fd = -1

    def _on_exit(self, child: Child, code: int) -> None:
        self._child = None
        self._hang_up()
        if self._is_stopping:
            self._on_ended()
            return
        self._start_later(f"the front end '{self.role}' (pid {child.pid}) {describe_exit(code)}")

    def _start_later(self, what_happened: str) -> None:
        has_been_healthy = self._loop.now_s() - self._started_s >= HEALTHY_AFTER_S
        self._num_deaths = 1 if has_been_healthy else self._num_deaths + 1
        pause_s = backoff_s(self._num_deaths)
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        self._loop.call_after(pause_s, self._restart)

    def _restart(self) -> None:
        if self._child is None and not self._is_stopping:
            self.start()
