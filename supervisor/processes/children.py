"""Child processes of the supervisor: started by exec, or forked by a zygote (zygotes.py), watched by pidfd either way.

This file does not know the children's purposes. Runs in the supervisor, in its only thread: PR_SET_PDEATHSIG kills
children when the thread that started them ends.
"""

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.failure_domains import bound
from shoal.supervisor.processes import niceness

#: Starts a process in a process group of its own: signals that a terminal sends to the server's group reach the
#: supervisor alone.
_popen: Callable[..., Any]
if sys.version_info >= (3, 11):
    _popen = partial(subprocess.Popen, process_group=0)
else:
    _popen = partial(subprocess.Popen, preexec_fn=os.setpgrp)

#: Children of this process that run and have not been waited for, by pid: one table, as the kernel has one list of
#: them.
_RUNNING: "dict[int, Child]" = {}


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """The command of a child process: `python -m module…`, with `environment` added to the supervisor's own.

    The child gets duplicates of `descriptors`, a mapping from environment variables; each of these holds the numbers of
    the child's duplicates, separated by commas.
    """

    role: str
    module: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Mapping[str, Sequence[int]] = field(default_factory=dict)
    has_low_priority: bool = False  # lower than that of processes that serve (niceness.py), until it is restored
    runs_model: bool = False  # runs users' code, in a worker
    command: Sequence[str] = ()  # the command in place of `python -m module…`, if any


class Child:
    """A child process, from the request for it to its end: a fork takes a while, and may be replaced by an exec."""

    def __init__(
        self,
        loop: EventLoop,
        program: ChildProgram,
        pipes: Sequence[tuple[int, int]],
        passed: Mapping[str, Sequence[int]],
    ) -> None:
        self.program = program
        #: Duplicates of the program's descriptors, open until the child has its copies: a fork takes a while.
        self.passed = dict(passed)
        #: The reading ends of the child's stdout and stderr where these are captured: they must be read.
        self.outputs: list[IO[bytes]] = [os.fdopen(reading, "rb", buffering=0) for reading, _ in pipes]
        #: The writing ends, open until the child has started.
        self.output_fds = [writing for _, writing in pipes]
        self._loop = loop
        # Changed as the child starts and ends. Signals wait until it has started.
        self.pid = 0
        self._pidfd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting_signal = 0
        self._has_low_priority = program.has_low_priority
        #: Whether the child has ended, or could not be started.
        self.is_over = False
        #: The return code (negative: the signal that ended it), or an OSError where the child could not be started.
        self.exited: Future[int] = loop.future()
        self._ended_here = bound(self._ended)
        #: The child's largest resident memory, known once it has ended. A forked child's begins with its parent's.
        self.peak_rss_bytes = 0
        # Changed by was_killed_for_memory: its answer; None before the first call.
        self._was_killed_for_memory: bool | None = None

    def was_killed_for_memory(self, claim: Callable[[], bool]) -> bool:
        """Whether the kernel has killed the child for want of memory; `claim` decides, and is called once, however many
        instances share the process."""
        if self._was_killed_for_memory is None:
            self._was_killed_for_memory = claim()
        return self._was_killed_for_memory

    def signal(self, number: int) -> None:
        """Send the child a signal; nothing happens where it has ended."""
        if self.is_over:
            return
        if self._pidfd < 0:
            self._waiting_signal = number
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def lower_priority(self) -> None:
        """Lower the child's priority, now or as soon as it has started; nothing happens where it has ended."""
        self._has_low_priority = True
        if self._pidfd >= 0:
            niceness.lower_priority(self.pid)

    def execute(self) -> None:
        """Start the child by exec. Raises OSError where the system refuses; the child is over then."""
        try:
            self._execute()
        except OSError as error:
            self._give_up(error)
            raise

    def execute_instead(self) -> None:
        """Start the child by exec where no zygote can fork it; an error goes to `exited`."""
        with suppress(OSError):
            self.execute()

    def _execute(self) -> None:
        # -P, safe path: a file named json.py in the working directory must not stand in for the standard module.
        isolation = ["-P", "-s"] if sys.version_info >= (3, 11) else ["-s"]
        stdout, stderr = self.output_fds or (None, None)
        # -u, unbuffered: what a process has printed must not be lost when it is killed.
        command = self.program.command or [sys.executable, *isolation, "-u", "-m", *self.program.module]
        process: subprocess.Popen[bytes] = _popen(
            command,
            env={
                **os.environ,
                **self.program.environment,
                **{variable: ",".join(map(str, fds)) for variable, fds in self.passed.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[fd for fds in self.passed.values() for fd in fds],
        )
        self._process = process
        self.close_passed()
        self.began(process.pid)

    def began(self, pid: int) -> None:
        """Watch the child, which a zygote has forked under this pid. Raises ProcessLookupError where it has ended
        already, another OSError where it cannot be watched; the child is over then."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError as error:
            self._give_up(error)
            raise
        self.pid = pid
        if self._has_low_priority:
            niceness.lower_priority(pid)
        else:
            niceness.restore_priority(pid)  # a forked child starts with the priority of its zygote
        _RUNNING[pid] = self
        self._loop.on_readable(self._pidfd, self._ended_here)
        self._close_outputs()
        if self._waiting_signal:
            self.signal(self._waiting_signal)

    def abandon(self) -> None:
        """Give up a child that has not been started, and close the pipes for its output."""
        self._give_up(OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)))
        for pipe in self.outputs:
            pipe.close()

    def _give_up(self, error: OSError) -> None:
        self.is_over = True
        if not self.exited.done():
            self.exited.set_exception(error)
            self.exited.exception()  # `exited` may be awaited by no flow: asyncio must not warn
        self._close_outputs()
        self.close_passed()
        if self._process is not None and self._pidfd < 0:  # without a pidfd the child's end would go unnoticed
            self._process.kill()
            self._process.wait()

    def close_passed(self) -> None:
        """Close the duplicates of the program's descriptors: the child has its copies."""
        passed, self.passed = self.passed, {}
        for fd in [fd for fds in passed.values() for fd in fds]:
            os.close(fd)

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
        _RUNNING.pop(self.pid, None)
        code = os.waitstatus_to_exitcode(status)
        if self._process is not None:
            self._process.returncode = code  # otherwise Popen would wait for the process itself
        self.peak_rss_bytes = usage.ru_maxrss * 1024
        self.exited.set_result(code)


def prepare(loop: EventLoop, program: ChildProgram, *, captured: bool) -> Child:
    """Make a child that is not started yet. Raises OSError where the system refuses."""
    pipes = list[tuple[int, int]]()
    passed: dict[str, list[int]] = {variable: [] for variable in program.descriptors}
    try:
        for _ in (1, 2) if captured else ():
            pipes.append(os.pipe())
        for variable, fds in program.descriptors.items():
            for fd in fds:
                passed[variable].append(os.dup(fd))
    except OSError:
        for fd in [*itertools.chain(*pipes), *itertools.chain(*passed.values())]:
            os.close(fd)
        raise
    return Child(loop, program, pipes, passed)


def spawn(
    loop: EventLoop,
    role: str,
    module: Sequence[str],
    environment: Mapping[str, str],
    *,
    captured: bool = False,
    has_low_priority: bool = False,
) -> Child:
    """Exec `python -m module…`, with `environment` added to this process's. Raises OSError if the system refuses."""
    child = prepare(loop, ChildProgram(role, module, environment, has_low_priority=has_low_priority), captured=captured)
    child.execute()
    return child


def running() -> "list[Child]":
    """All children that run."""
    return list(_RUNNING.values())


def reap_orphans() -> bool:
    """Reap dead processes of users' code, which the supervisor, a subreaper, inherits when their parents end.

    Returns False where the supervisor's own child comes first in the kernel's list: call again once it is reaped.
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
