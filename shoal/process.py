"""What every Shoal process does first: die with its parent, carry a readable title.

Used in every process, right after it starts. Linux only, as the rest of the transport is.
"""

import ctypes
import os
import signal

from setproctitle import setproctitle

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to SIGKILL this process when the thread that started it is gone.

    `parent` is the pid that should be our parent, where it is known: a parent that died before the call is noticed.
    The request does not survive an exec, so every exec'd or forked process calls this itself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def set_title(title: str) -> None:
    """What `ps` shows: `shoal batcher`, `shoal worker densenet_0 (CPU 0-1)`."""
    setproctitle(f"shoal {title}")
