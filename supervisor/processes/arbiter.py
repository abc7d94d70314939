"""One gunicorn arbiter as the supervisor sees it: started early, opened when models are ready, started again.

One arbiter runs for each kind of front end: HTTP lanes, gRPC lanes, the road. Each imports what its workers need while
models load, and waits for one byte before it opens its sockets.
"""

import logging
import os
import signal
from collections.abc import Mapping, Sequence

from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, Future, first, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S, backoff_s
from shoal.supervisor.processes.silence import Silence, observe

_log = logging.getLogger(__name__)

#: An arbiter's loop makes a pass a second; one that makes none for so long though it could have run, is killed (ours).
#: A front end that hangs is gunicorn's to end, after 30 s.
HUNG_S = 30.0
#: Between two checks of that (ours).
LOOK_S = 1.0

#: Variables by which gunicorn would take settings that are not meant for it. (systemd's are gone already: notify.py.)
FOREIGN_VARIABLES = ("GUNICORN_CMD_ARGS", "GUNICORN_FD", "GUNICORN_PID", "WEB_CONCURRENCY")

_GUNICORN = ("shoal.frontend.gunicorn_main", "--config", "python:shoal.frontend.gunicorn_conf")


class Arbiter:
    """An arbiter's process, with `num_processes` front ends."""

    def __init__(
        self,
        loop: EventLoop,
        role: str,
        num_processes: int,
        environment: Mapping[str, str],
        fds: Sequence[int],
    ) -> None:
        self.role = role
        self.num_processes = num_processes
        self._loop = loop
        self._environment = environment
        self._fds = fds
        # Changed as the process starts, dies and stops.
        self._running: Future[None] | None = None
        self._child: Child | None = None
        self._go_fd = -1
        self._is_open = False
        self._stopping: Future[None] = loop.future()
        self._num_deaths = 0
        self._started_s = 0.0
        self._progress_fd = -1  # a file without a name, where the arbiter counts the passes of its loop

    def start(self) -> None:
        """Keep the process running until `stop`."""
        self._running = self._loop.start(self._run())

    @property
    def title(self) -> str:
        """The name of this front end in the log."""
        return f"the front end '{self.role}'"

    def contain(self, _error: Exception) -> None:
        """End the arbiter's process after an unexpected error; it is started again."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    async def _run(self) -> None:
        """Start the process again whenever it has ended, or could not be started."""
        while not self._stopping.done():
            what_happened = f"{self.title} cannot go on"
            with contained(self):
                what_happened = await self._run_process()
            if not self._stopping.done():
                await first(self._stopping, limit_s=self._pause_s(what_happened))

    async def _run_process(self) -> str:
        """Start the process and wait for its end; returns the words for that end."""
        try:
            child = self._child = self._execute()
        except OSError as error:
            return f"{self.title} cannot be started: {error}"
        self._started_s = self._loop.now_s()
        if self._is_open:
            self._let_go()
        try:
            await self._watch(child)
            code = await shared(child.exited)
        finally:
            self._child = None
            self._hang_up()
        return f"{self.title} (pid {child.pid}) {describe_exit(code)}"

    async def _watch(self, child: Child) -> None:
        """Kill the process if its loop stands still; returns when it has ended."""
        silence, passes, looked_s = Silence(self._loop.now_s()), b"", self._loop.now_s()
        while not await first(child.exited, limit_s=LOOK_S):
            now_s, seen = self._loop.now_s(), os.pread(self._progress_fd, 8, 0)
            # Until it is let go, it waits for its byte, and while it stops, for its front ends. A late look excuses it,
            # as the machine stood still.
            is_excused = self._go_fd >= 0 or self._stopping.done() or now_s - looked_s > 2 * LOOK_S
            if seen != passes or is_excused:
                silence.reset(now_s)
            if silence.look(now_s, observe(child.pid)) >= HUNG_S:
                _log.error("%s (pid %d) has not moved for %g s; it is killed", self.title, child.pid, HUNG_S)
                child.signal(signal.SIGKILL)
                silence.reset(now_s)
            passes, looked_s = seen, now_s

    def _execute(self) -> Child:
        for name in FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        if self._progress_fd < 0:
            self._progress_fd = os.memfd_create(f"passes of {self.role}")
        os.ftruncate(self._progress_fd, 0)  # a successor counts from the beginning
        read_fd, go_fd = os.pipe()
        environment = {
            **self._environment,
            "SHOAL_FRONT_END": self.role,
            "SHOAL_PROCESSES": str(self.num_processes),
            "SHOAL_GO_FD": str(read_fd),
            "SHOAL_PROGRESS_FD": str(self._progress_fd),
            "SHOAL_SUPERVISOR_PID": str(os.getpid()),
            # numpy's BLAS would start threads at import, and the arbiter must have none when it forks
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            child = spawn(
                self._loop, self.role, _GUNICORN, environment, pass_fds=[*self._fds, read_fd, self._progress_fd]
            )
        except OSError:
            os.close(go_fd)
            raise
        finally:
            os.close(read_fd)
        self._go_fd = go_fd
        return child

    def open(self) -> None:
        """Let the front ends serve: the sockets listen now."""
        self._is_open = True
        if self._child is not None:
            self._let_go()

    def _let_go(self) -> None:
        go_fd, self._go_fd = self._go_fd, -1
        try:
            os.write(go_fd, b"g")
        except BrokenPipeError:
            return  # the process has ended; its pidfd reports that
        finally:
            os.close(go_fd)

    def stop(self) -> Future[None]:
        """Let the front ends answer what they have accepted, and end; the future is done when they have ended."""
        self._stopping.set_result(None)
        if self._child is not None and self._is_open:
            self._child.signal(signal.SIGTERM)
        else:
            self._hang_up()
        return self._stopping if self._running is None else self._running

    def _hang_up(self) -> None:
        """Close the pipe: an arbiter that still waits for its byte then ends."""
        if self._go_fd >= 0:
            os.close(self._go_fd)
            self._go_fd = -1

    def _pause_s(self, what_happened: str) -> float:
        """Log why the process is started again; returns the pause before that."""
        has_been_healthy = self._loop.now_s() - self._started_s >= HEALTHY_AFTER_S
        self._num_deaths = 1 if has_been_healthy else self._num_deaths + 1
        pause_s = backoff_s(self._num_deaths)
        _log.error("%s; it is started again in %g s", what_happened, pause_s)
        return pause_s
