"""Child processes of the supervisor: started by exec, watched by pidfd.

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


class Child:
    """A running child. `on_exit` is called once, with its return code (negative: the signal that ended it)."""

    def __init__(self, loop: EventLoop, process: "subprocess.Popen[bytes]", pidfd: int, role: str) -> None:
        self.process = process
        self.role = role
        self.started_at_s = time.monotonic()
        self._loop = loop
        self._pidfd = pidfd
        #: Most memory it had at once, known once it has ended. An exec'd process starts with what its parent had.
        self.peak_rss_bytes = 0

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
            _, status, usage = os.wait4(self.pid, 0)
            self.process.returncode = code = os.waitstatus_to_exitcode(status)  # or Popen would wait itself
            self.peak_rss_bytes = usage.ru_maxrss * 1024
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
    captured: bool = False,
) -> Child:
    """Exec `python -m module…` with `environment` added to ours. Raises OSError where the system refuses.

    What a `captured` child writes comes out of `process.stdout` and `process.stderr`, which somebody must read.
    """
    # Safe path: a file named json.py in the working directory must not stand in for the standard module.
    isolation = ["-P", "-s"] if sys.version_info >= (3, 11) else ["-s"]
    # Unbuffered: what a killed process has printed shall not die with it.
    output, unbuffered = (subprocess.PIPE, ["-u"]) if captured else (None, [])
    process = subprocess.Popen(
        [sys.executable, *isolation, *unbuffered, "-m", *module],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
    )
    return Child(loop, process, os.pidfd_open(process.pid), role)
