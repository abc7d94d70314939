"""Child processes of the supervisor: started by exec, watched by pidfd, restarted with a growing pause.

Nothing here knows what a child is for. Runs in the supervisor, in its only thread: PR_SET_PDEATHSIG fires when the
thread that started a child ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from shoal.supervisor.event_loop import EventLoop

#: Pauses before a restart, by the number of deaths in a row; the first restart is at once (reliability over
#: politeness).
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A child that lived this long starts again from the first pause.
HEALTHY_AFTER_S = 60.0


class Child:
    """A running child. `on_exit` is called once, with its return code (negative: the signal that ended it)."""

    def __init__(self, loop: EventLoop, process: "subprocess.Popen[bytes]", pidfd: int, role: str) -> None:
        self.process = process
        self.role = role
        self.started_at_s = time.monotonic()
        self._loop = loop
        self._pidfd = pidfd

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal; to a child that has ended, nothing happens."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def watch(self, on_exit: Callable[["Child", int], None]) -> None:
        """Have `on_exit` called when the kernel says that the child has ended."""

        def ended() -> None:
            code = self.process.wait()
            self._loop.forget(self._pidfd)
            os.close(self._pidfd)
            on_exit(self, code)

        self._loop.on_readable(self._pidfd, ended)


def spawn(
    loop: EventLoop,
    role: str,
    module: Sequence[str],
    environment: Mapping[str, str],
    *,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Exec `python -m module…` with `environment` added to ours. Raises OSError where the system refuses."""
    # Safe path: a file named json.py in the working directory must not stand in for the standard module.
    isolation = ["-P", "-s"] if sys.version_info >= (3, 11) else ["-s"]
    process = subprocess.Popen(
        [sys.executable, *isolation, "-m", *module],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        pass_fds=pass_fds,
    )
    return Child(loop, process, os.pidfd_open(process.pid), role)


def backoff_s(num_deaths: int) -> float:
    """The pause before the restart that follows the `num_deaths`-th death in a row."""
    return BACKOFF_S[min(max(num_deaths, 1), len(BACKOFF_S)) - 1]


def describe_exit(code: int) -> str:
    """A return code in words: `exited with code 1`, `was killed by signal 9 (SIGKILL)`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"
