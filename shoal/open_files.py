"""How many file descriptors this process has and may have, and the sentences for a server that gets no more of them, no
more processes, or no larger files.

Used in every process.
"""

import errno
import os
import resource
from functools import cache

#: The limit that is assumed where both limits are "unlimited", and the most to which the server raises its soft limit
#: (ours): some programs try all numbers up to the limit, and some systems allow 2^30.
MOST = 1 << 20
_OPEN = "/proc/self/fd"
#: The remedy for too few descriptors.
RAISE = "Raise the limit of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"
#: The remedy for too few processes.
RAISE_TASKS = (
    "Raise the limit of processes and threads: TasksMax= of the systemd unit, --pids-limit of a container, or ulimit -u"
)
#: The remedy for a limit of files' sizes, which counts for shared memory.
RAISE_FILE_SIZE = "Raise the limit of a file's size: LimitFSIZE= of the systemd unit, or ulimit -f"


def limit() -> int:
    """The number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """The number of descriptors that this process has open; the limit, where /proc does not tell."""
    try:
        return os.stat(_OPEN).st_size if _size_tells() else _num_listed()
    except OSError:
        return limit()


@cache
def _size_tells() -> bool:
    """Whether the size of /proc/self/fd is the number of descriptors: since Linux 6.2, but not in every sandbox."""
    return os.stat(_OPEN).st_size == _num_listed()


def _num_listed() -> int:
    return len(os.listdir(_OPEN)) - 1  # without the descriptor by which listdir reads


def explain(error: BaseException) -> str:
    """The text of an error; if descriptors have run out, with the limit and the remedy in place of the errno."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return f"no file descriptor is left, a process of the server's may have {limit()}. {RAISE}"
    if number == errno.ENFILE:
        return "no file descriptor is left on this machine. Raise the limit of all processes: sysctl fs.file-max"
    return str(error)


def explain_start(error: BaseException) -> str:
    """The text of an error with which a process could not be started: like `explain`, and with the remedy where the
    limit of processes is reached."""
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return f"this user, or its control group, may have no further process. {RAISE_TASKS}"
    return explain(error)
