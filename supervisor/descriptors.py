"""File descriptors: how many the server may open, and whether enough are left for another instance or client.

The supervisor needs the most: for each instance, pipes, a connection and shared memory; every other process holds one
descriptor for each segment that it maps. An instance or guest for which descriptors would not suffice is refused before
anything is started. Runs in the supervisor.
"""

import os
import resource
from collections.abc import Callable

from shoal.errors import UnavailableError

#: The soft limit is raised to the hard one, but no further than this (ours): some programs go through all numbers up to
#: the limit, and some systems allow 2^30.
MOST = 1 << 20
#: Descriptors that one instance takes in the supervisor: its pidfd, two pipes, its connection, four for its memory and
#: bell, and two for what is mapped of that (measured: 53 with one instance, 93 with five).
PER_INSTANCE = 10
#: Descriptors that one guest takes in the supervisor: its connection, its memory and its bell.
PER_GUEST = 5
#: Descriptors left for restarted processes, joining front ends, and files that are read for a moment (ours).
RESERVE = 48
#: The lowest usable limit: without models a server has 30 descriptors open (measured), front ends' sockets included.
LEAST = 96

_RAISE = "Raise the limit of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"


def raise_limit() -> None:
    """Let this process, and those that it will start, have as many descriptors as the system allows.

    The soft limit is 1024 by tradition, for programs that use select(), which knows no descriptor beyond. Workers
    inherit the higher limit, since each maps a segment for every client. A model that uses select() gets the same small
    descriptors as before, unless its process has a thousand open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_limit() -> None:
    """Raise UnavailableError where the limit of descriptors is so low that no model could be loaded."""
    if limit() < LEAST:
        raise UnavailableError(
            f"the server may have {limit()} files open, and needs {LEAST} for itself and one instance of a model, "
            f"{PER_INSTANCE} more for each further one: 1024 do for most. {_RAISE}"
        )


def limit() -> int:
    """The number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """The number of descriptors that this process has open; the limit, where /proc does not list them."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the directory's own is listed, too
    except OSError:
        return limit()


class Descriptors:
    """The supervisor's own descriptors: admits instances and guests while enough are left. `num_open` and `limit`
    return how many it has and may have."""

    def __init__(self, num_open: Callable[[], int] = num_open, limit: Callable[[], int] = limit) -> None:
        self._num_open = num_open
        self._limit = limit

    def admit_instances(self, model: str, count: int, num_coming_up: int) -> None:
        """Raise UnavailableError where the descriptors do not suffice for `count` more instances.

        `num_coming_up` other instances, starting or dead, have not taken all of their descriptors yet.
        """
        if not count:
            return
        num_open, most = self._num_open(), self._limit()
        if num_open + RESERVE + PER_INSTANCE * (num_coming_up + count) > most:
            others = f", {num_coming_up} others that are starting need theirs" if num_coming_up else ""
            raise UnavailableError(
                f"model '{model}' cannot have {count} more instance{'s' * (count > 1)}: each takes {PER_INSTANCE} file "
                f"descriptors of the server's main process, which has {num_open} open{others}, keeps {RESERVE} in "
                f"reserve and may have {most}. {_RAISE}"
            )

    def check_guest(self) -> None:
        """Raise UnavailableError where one more guest would take descriptors that instances may need."""
        num_open, most = self._num_open(), self._limit()
        if num_open + RESERVE + PER_GUEST > most:
            raise UnavailableError(
                f"the server's main process has {num_open} file descriptors open and may have {most}, no more clients "
                f"are taken. {_RAISE}"
            )


def is_scarce() -> bool:
    """Whether a descriptor taken now would be one of the reserve; costs two system calls."""
    try:
        probe = os.dup(0)
    except OSError:
        return True
    os.close(probe)
    return probe >= limit() - RESERVE
