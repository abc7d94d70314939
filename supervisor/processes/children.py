"""Child processes of the supervisor: started by exec, or forked by a zygote (zygotes.py), watched by pidfd either way.

Nothing here knows what a child is for. Runs in the supervisor, in its only thread: PR_SET_PDEATHSIG fires when the
thread that is a child's parent ends.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.failure_domains import bound
from shoal.supervisor.processes import niceness

#: Pids of those that run and have not been waited for. One set, as the kernel's list of a process's children is one.
_RUNNING: set[int] = set()


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """What a child runs: `python -m module…`, with `environment` added to ours."""

    role: str
    module: Sequence[str]
    environment: Mapping[str, str]
    pass_fds: Sequence[int] = ()
    gives_way: bool = False  # to processes that serve (niceness.py), until it is let join in


class Child:
    """A child, from the moment it is wanted: to have it forked takes a while, and where that fails, it is exec'd."""

    def __init__(self, loop: EventLoop, program: ChildProgram, pipes: Sequence[tuple[int, int]]) -> None:
        self.program = program
        #: What it writes to stdout and stderr where that is captured: it must be read.
        self.outputs: list[IO[bytes]] = [os.fdopen(reading, "rb", buffering=0) for reading, _ in pipes]
        #: The other ends, open until it has begun.
        self.output_fds = [writing for _, writing in pipes]
        self._loop = loop
        # Changed as it begins and ends. Until then signals wait.
        self.pid = 0
        self._pidfd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting_signal = 0
        #: Whether it has ended, or could not begin.
        self.is_over = False
        #: Its return code (negative: the signal that ended it), or an OSError where it could not begin.
        self.exited: Future[int] = loop.future()
        self._ended_here = bound(self._ended)
        #: Most memory it had at once, known once it has ended. It starts with what its parent had.
        self.peak_rss_bytes = 0

    def signal(self, number: int) -> None:
        """Send a signal; to a child that has ended, nothing happens."""
        if self.is_over:
            return
        if self._pidfd < 0:
            self._waiting_signal = number
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def execute(self) -> None:
        """Begin by exec. Raises OSError where the system refuses, and it is over."""
        try:
            self._execute()
        except OSError as error:
            self._give_up(error)
            raise

    def execute_instead(self) -> None:
        """Begin by exec where no zygote forks it after all; those who wait for `exited` have the error."""
        with suppress(OSError):
            self.execute()

    def _execute(self) -> None:
        # Safe path: a file named json.py in the working directory must not stand in for the standard module.
        isolation = ["-P", "-s"] if sys.version_info >= (3, 11) else ["-s"]
        stdout, stderr = self.output_fds or (None, None)
        self._process = subprocess.Popen(
            # Unbuffered: what a killed process has printed shall not die with it.
            [sys.executable, *isolation, "-u", "-m", *self.program.module],
            env={**os.environ, **self.program.environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=self.program.pass_fds,
        )
        self.began(self._process.pid)

    def began(self, pid: int) -> None:
        """It runs, as our child, under this pid. Raises ProcessLookupError where it is no more, another OSError where
        it cannot be watched, and it is over."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError as error:
            self._give_up(error)
            raise
        self.pid = pid
        if self.program.gives_way:
            niceness.give_way(pid)
        else:
            niceness.join_in(pid)  # its zygote may give way
        _RUNNING.add(pid)
        self._loop.on_readable(self._pidfd, self._ended_here)
        self._close_outputs()
        if self._waiting_signal:
            self.signal(self._waiting_signal)

    def abandon(self) -> None:
        """Keep it from beginning, and close the pipes that its output would come through."""
        self._give_up(OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)))
        for pipe in self.outputs:
            pipe.close()

    def _give_up(self, error: OSError) -> None:
        self.is_over = True
        if not self.exited.done():
            self.exited.set_exception(error)
            self.exited.exception()  # asyncio takes it as seen, by those who do not wait for it, too
        self._close_outputs()
        if self._process is not None and self._pidfd < 0:  # it runs, and without a pidfd its end would go unnoticed
            self._process.kill()
            self._process.wait()

    def _close_outputs(self) -> None:
        fds, self.output_fds = self.output_fds, []
        for fd in fds:
            os.close(fd)

    def _ended(self) -> None:
        self.is_over = True
        pidfd, self._pidfd = self._pidfd, -1
        self._loop.forget(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(self.pid, 0)
        _RUNNING.discard(self.pid)
        code = os.waitstatus_to_exitcode(status)
        if self._process is not None:
            self._process.returncode = code  # or Popen would wait itself
        self.peak_rss_bytes = usage.ru_maxrss * 1024
        self.exited.set_result(code)


def prepare(loop: EventLoop, program: ChildProgram, *, captured: bool) -> Child:
    """A child that has yet to begin. Raises OSError where the system refuses."""
    pipes = list[tuple[int, int]]()
    try:
        for _ in (1, 2) if captured else ():
            pipes.append(os.pipe())
    except OSError:
        for pipe in pipes:
            for fd in pipe:
                os.close(fd)
        raise
    return Child(loop, program, pipes)


def spawn(
    loop: EventLoop,
    role: str,
    module: Sequence[str],
    environment: Mapping[str, str],
    *,
    pass_fds: Sequence[int] = (),
    captured: bool = False,
    gives_way: bool = False,
) -> Child:
    """Exec `python -m module…` with `environment` added to ours. Raises OSError where the system refuses."""
    child = prepare(loop, ChildProgram(role, module, environment, pass_fds, gives_way), captured=captured)
    child.execute()
    return child


def reap_orphans() -> bool:
    """Wait for dead processes that the supervisor has not started: as a subreaper it inherits what users' code leaves.

    False where one of our own children is in front of them: once it has been waited for, look again.
    """
    while dead := _first_dead():
        if dead in _RUNNING:
            return False
        os.waitpid(dead, 0)
    return True


def _first_dead() -> int:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_pid if found else 0
