"""The calls of the kernel that a server cannot do without, and that an old kernel or a container's filter refuses.

Each is tried before anything is started, so that a server says in a sentence what is missing. Calls that a server can
do without, for unnamed files in /dev/shm and pages that are made present (shm/segment.py), are not tried. Runs in the
supervisor, and in `shoal doctor`.
"""

import os
import platform
import signal
from collections.abc import Callable

from shoal.errors import UnavailableError
from shoal.shm import segment

#: The oldest kernel that has all calls of _CALLS: pidfd_open came with Linux 5.3, the others before.
OLDEST = "5.3"


def _make_bell() -> None:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))


def _watch_process() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(pidfd, 0)
    finally:
        os.close(pidfd)


def _make_memory() -> None:
    memory = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        segment.seal_writes(memory)
    finally:
        os.close(memory)


_CALLS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("eventfd", _make_bell),
    ("pidfd_open and pidfd_send_signal", _watch_process),
    ("memfd_create with seals", _make_memory),
)


def find_lack(calls: tuple[tuple[str, Callable[[], None]], ...] = _CALLS) -> str:
    """What is missing, and what to do, in a sentence; "" where nothing is."""
    for names, attempt in calls:
        try:
            attempt()
        except AttributeError as error:
            return f"this Python was built without {error.name}, on an older system: choose another by SHOAL_PYTHON"
        except OSError as error:
            return (
                f"the kernel, Linux {platform.release()}, refuses {names}: {error.strerror}. Shoal needs Linux "
                f"{OLDEST} or newer, and in a container a seccomp profile that allows the call"
            )
    if not os.path.exists("/proc/self/fd"):
        return "/proc is not mounted here, and the server needs it: mount -t proc proc /proc"
    return ""


def check_kernel() -> None:
    """Raise UnavailableError where the kernel lacks what a server needs."""
    if lack := find_lack():
        raise UnavailableError(f"no server can run here: {lack}")
