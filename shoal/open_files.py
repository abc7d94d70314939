"""How many file descriptors this process has and may have, and the sentence for one that has none left.

Used in every process.
"""

import errno
import os
import resource

#: Where the soft and the hard limit are "unlimited", and the most that the server raises its soft limit to (ours): some
#: programs go through all numbers up to the limit, and some systems allow 2^30.
MOST = 1 << 20
#: What an operator does against too few descriptors.
RAISE = "Raise the limit of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"


def limit() -> int:
    """The number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """The number of descriptors that this process has open; the limit, where /proc does not tell."""
    try:
        # The directory's size is the number since Linux 6.2, and 0 before.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1  # the listing's own is listed
    except OSError:
        return limit()


def explain(error: BaseException) -> str:
    """What an error says; where descriptors have run out, with the limit and the cure, in place of the errno."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return f"no file descriptor is left, a process of the server's may have {limit()}. {RAISE}"
    if number == errno.ENFILE:
        return "no file descriptor is left on this machine. Raise the limit of all processes: sysctl fs.file-max"
    return str(error)
