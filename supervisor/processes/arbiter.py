"""gunicorn's arbiter as the supervisor sees it: started early, opened when models are ready, started again.

One arbiter runs for all kinds of front ends: HTTP lanes, gRPC lanes, the road (frontend/arbiter.py). The arbiter
imports what front ends need while models load, and waits for one byte before it opens its sockets.
"""

import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shoal.open_files import explain_start
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, Future, first, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.processes.children import Child, ChildProgram
from shoal.supervisor.processes.restarts import Pauses
from shoal.supervisor.processes.silence import Silence, observe
from shoal.supervisor.processes.zygotes import BASE, Zygotes

_log = logging.getLogger(__name__)

#: An arbiter's loop turns once a second; an arbiter whose loop has not turned for so long, though it could have run, is
#: killed (ours). A front end that hangs is killed by the arbiter, after 30 s.
HUNG_S = 30.0
#: Seconds between two checks of the arbiter's loop (ours).
LOOK_S = 1.0
#: The longest pause before an arbiter is started again (ours): no request is answered meanwhile, and a start takes half
#: a second of a core.
MAX_PAUSE_S = 2.0

#: Variables by which gunicorn would take settings that are not meant for it. (systemd's are gone already: service.py.)
FOREIGN_VARIABLES = ("GUNICORN_CMD_ARGS", "GUNICORN_FD", "GUNICORN_PID", "WEB_CONCURRENCY")

_GUNICORN = ("shoal.frontend.gunicorn_main", "--config", "python:shoal.frontend.gunicorn_conf")


@dataclass(frozen=True, slots=True)
class FrontEndRole:
    """A kind of front end: the number of its processes, and their environment variables and descriptors."""

    name: str
    num_processes: int
    descriptors: Mapping[str, Sequence[int]]
    settings: Mapping[str, str] = field(default_factory=dict)

    def prefixed(self, variable: str) -> str:
        """The variable's name for the arbiter, which has the variables of all roles."""
        return f"SHOAL_{self.name.upper()}_{variable}"


class Arbiter:
    """The arbiter's process, with front ends of these roles; they stop in this order, the road last."""

    title = "the front ends' arbiter"  # in the log

    def __init__(
        self, loop: EventLoop, roles: Sequence[FrontEndRole], environment: Mapping[str, str], zygotes: Zygotes
    ) -> None:
        self._loop = loop
        self._zygotes = zygotes
        self._environment = {
            **environment,
            "SHOAL_FRONT_ENDS": json.dumps({role.name: role.num_processes for role in roles}),
            **{role.prefixed(name): value for role in roles for name, value in role.settings.items()},
        }
        self._descriptors = {role.prefixed(name): fds for role in roles for name, fds in role.descriptors.items()}
        # Changed as the process starts, dies and stops.
        self._running: Future[None] | None = None
        self._child: Child | None = None
        self._go_fd = -1
        self._is_open = False
        self._stopping: Future[None] = loop.future()
        self._pauses = Pauses(MAX_PAUSE_S)
        self._progress_fd = -1  # a file without a name, where the arbiter counts the turns of its loop

    def start(self) -> None:
        """Keep the process running until `stop`."""
        self._running = self._loop.start(self._run())

    def contain(self, _error: Exception) -> None:
        """End the arbiter's process after an unexpected error, unless that has ended it; it is started again."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    async def _run(self) -> None:
        """Start the process again whenever it has ended, or could not be started."""
        while not self._stopping.done():
            what_happened = f"{self.title} cannot go on"
            with contained(self):
                what_happened = await self._run_process()
            if not self._stopping.done():
                pause_s = self._pauses.ended(self._loop.now_s())
                _log.error("%s; it is started again in %g s", what_happened, pause_s)
                await first(self._stopping, limit_s=pause_s)

    async def _run_process(self) -> str:
        """Start the process and wait for its end; returns the words for that end."""
        self._pauses.started(self._loop.now_s())
        try:
            child = self._child = self._execute()
        except OSError as error:
            return self._not_started(error)
        if self._is_open:
            self._send_go()
        try:
            await self._watch(child)
            code = await shared(child.exited)
        except OSError as error:  # no zygote has forked it, and the system refuses an exec
            return self._not_started(error)
        finally:
            if not child.is_over:  # after an unexpected error
                child.signal(signal.SIGKILL)
            self._child = None
            self._hang_up()
        return f"{self.title} (pid {child.pid}) {describe_exit(code)}"

    async def _watch(self, child: Child) -> None:
        """Kill the process if its loop stands still; returns when it has ended."""
        silence, passes, looked_s = Silence(self._loop.now_s()), b"", self._loop.now_s()
        while not await first(child.exited, limit_s=LOOK_S):
            now_s, seen = self._loop.now_s(), os.pread(self._progress_fd, 8, 0)
            # Before the server serves, the arbiter waits for the byte of `_send_go`; while it stops, for its front
            # ends. Silence does not count then, nor before the arbiter is forked, nor if this look is late, as the
            # machine has stood still.
            is_excused = not child.pid or not self._is_open or self._stopping.done() or now_s - looked_s > 2 * LOOK_S
            if seen != passes or is_excused:
                silence.reset(now_s)
            if not is_excused and silence.look(now_s, observe(child.pid)) >= HUNG_S:
                _log.error("%s (pid %d) has not moved for %g s; it is killed", self.title, child.pid, HUNG_S)
                child.signal(signal.SIGKILL)
                silence.reset(now_s)
            passes, looked_s = seen, now_s

    def _not_started(self, error: OSError) -> str:
        return f"{self.title} cannot be started: {explain_start(error)}"

    def _execute(self) -> Child:
        for name in FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        if self._progress_fd < 0:
            self._progress_fd = os.memfd_create("passes of the arbiter")
        os.ftruncate(self._progress_fd, 0)  # each arbiter counts from 0
        read_fd, go_fd = os.pipe()
        environment = {
            **self._environment,
            "SHOAL_SUPERVISOR_PID": str(os.getpid()),
            # numpy's BLAS would start threads at import, and the arbiter must have none when it forks
            "OPENBLAS_NUM_THREADS": "1",
        }
        descriptors = {**self._descriptors, "SHOAL_GO_FD": [read_fd], "SHOAL_PROGRESS_FD": [self._progress_fd]}
        try:
            child = self._zygotes.spawn(BASE, ChildProgram("front ends", _GUNICORN, environment, descriptors))
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
            self._send_go()

    def _send_go(self) -> None:
        with suppress(BrokenPipeError):  # the process has ended; its pidfd reports that
            os.write(self._go_fd, b"g")

    def stop(self) -> Future[None]:
        """Let the front ends answer what they have accepted, and end; the future is done when they have ended."""
        self._stopping.set_result(None)
        self._hang_up()  # before the signal: an arbiter that does not handle signals yet would miss that
        if self._child is not None and self._is_open:
            self._child.signal(signal.SIGTERM)
        return self._stopping if self._running is None else self._running

    def _hang_up(self) -> None:
        """Close the pipe, which ends an arbiter that still waits for its byte, and one that has the byte but does not
        handle signals yet: it ignores SIGTERM then, as its zygote does."""
        if self._go_fd >= 0:
            os.close(self._go_fd)
            self._go_fd = -1
