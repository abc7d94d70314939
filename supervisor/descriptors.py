"""File descriptors: how many the server may open, and whether enough are left for another instance or client.

The supervisor needs the most: for each instance, pipes, a connection and shared memory; every other process holds one
descriptor for each segment that it maps. An instance, a guest or a segment of a large payload that would take the last
descriptors is refused before anything is started. So an instance or a front end that has died can always be started
again. Runs in the supervisor.
"""

import logging
import resource
import time
from collections.abc import Callable

from shoal.errors import UnavailableError
from shoal.open_files import MOST, RAISE, limit, num_open

_log = logging.getLogger(__name__)

#: Descriptors that one instance takes in the supervisor: its pidfd, two pipes, its connection, four for its memory and
#: bell, and two that mapping its memory takes (measured: 53 with one instance, 93 with five).
PER_INSTANCE = 10
#: Descriptors that one guest takes in the supervisor: its connection, its memory and its bell.
PER_GUEST = 5
#: Descriptors that the segment of one payload takes in the supervisor.
PER_SEGMENT = 2
#: Descriptors left for restarted processes, joining front ends, and files that are read for a moment (ours).
RESERVE = 48
#: The lowest usable limit: without models a server has 30 descriptors open (measured), front ends' sockets included.
LEAST = 96
#: Seconds between two warnings that descriptors are scarce (ours).
WARN_AGAIN_S = 60.0


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
            f"{PER_INSTANCE} more for each further one: 1024 do for most. {RAISE}"
        )


class Descriptors:
    """The supervisor's own descriptors: admits instances, guests and payloads' segments while enough are left.

    `num_coming_up` returns how many instances are starting or dead, and have not taken all of their descriptors yet;
    `num_open` and `limit` return how many descriptors this process has and may have.
    """

    def __init__(
        self,
        num_coming_up: Callable[[], int] = lambda: 0,
        num_open: Callable[[], int] = num_open,
        limit: Callable[[], int] = limit,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_coming_up = num_coming_up
        self._num_open = num_open
        self._limit = limit
        self._now_s = now_s
        # Changed by is_scarce.
        self._warn_s = float("-inf")  # when the next warning is due

    def admit_instances(self, model: str, count: int) -> None:
        """Raise UnavailableError where the descriptors do not suffice for `count` more instances."""
        num_coming_up = self._num_coming_up()
        if not count or self._num_left() >= PER_INSTANCE * count:
            return
        others = f", {num_coming_up} others that are starting need theirs" if num_coming_up else ""
        raise UnavailableError(
            f"model '{model}' cannot have {count} more instance{'s' * (count > 1)}: each takes {PER_INSTANCE} file "
            f"descriptors of the server's main process, which has {self._num_open()} open{others}, keeps {RESERVE} in "
            f"reserve and may have {self._limit()}. {RAISE}"
        )

    def check_guest(self) -> None:
        """Raise UnavailableError where one more guest would take descriptors that instances may need."""
        if self._num_left() < PER_GUEST:
            raise UnavailableError(
                f"the server's main process has {self._num_open()} file descriptors open and may have {self._limit()}, "
                f"no more clients are taken. {RAISE}"
            )

    def is_scarce(self) -> bool:
        """Whether a segment for one payload would take descriptors that instances may need; the log then says, once a
        minute, what to raise."""
        if self._num_left() >= PER_SEGMENT:
            return False
        if self._now_s() >= self._warn_s:
            self._warn_s = self._now_s() + WARN_AGAIN_S
            _log.warning(
                "the server's main process has %d file descriptors open and may have %d: requests and results that are "
                "too large for a slab are refused, so that instances can start again. %s",
                self._num_open(), self._limit(), RAISE,
            )  # fmt: skip
        return True

    def _num_left(self) -> int:
        """How many descriptors are left beside the reserve and what instances that are starting or dead will take."""
        return self._limit() - self._num_open() - RESERVE - PER_INSTANCE * self._num_coming_up()
