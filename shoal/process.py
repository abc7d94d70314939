"""What every Shoal process does first: die with its parent, carry a readable title.

Used in every process, right after it starts. Linux only, as the rest of the transport is.
"""

import ctypes
import os
import signal
from collections.abc import Collection

#: Of a worker whose GPU answers it no more: EX_SOFTWARE, which nothing else here ends with (what a model runs may).
EXIT_DEVICE_LOST = 70

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to SIGKILL this process when the thread that started it is gone.

    `parent` is the pid that should be our parent, where it is known: a parent that died before the call is noticed.
    The request does not survive an exec, so every exec'd or forked process calls this itself.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def ignore_group_signals() -> None:
    """Leave SIGINT and SIGTERM to the supervisor, which decides when a process has nothing left to answer.

    A terminal and systemd send them to the whole group. The supervisor alone is asked for the ledger by SIGUSR1, which
    would end who does not know it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def pin_threads(pid: int, cores: Collection[int]) -> None:
    """Have all threads of a process run on these cores only; one that has ended meanwhile does not mind."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
    except (FileNotFoundError, ProcessLookupError):
        return


def set_title(title: str) -> None:
    """What `ps` shows: `shoal batcher`, `shoal worker densenet_0 (CPU 0-1)`.

    The environment of a model need not have setproctitle; there it shows the command, which ends with the instance.
    """
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(f"shoal {title}")
