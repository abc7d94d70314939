"""Priorities: processes that start or end have a lower one than those that serve.

A start takes tens of milliseconds of CPU, or with some frameworks many seconds. At the priority of all others a start
delays a request by milliseconds at each process that the request passes; the road, at niceness 10, is delayed far more.
Before the server serves, priorities are not lowered: a start would wait for everything else on
the machine. Runs in the supervisor.
"""

import functools
import os
import threading
from contextlib import suppress

from shoal.process import set_niceness

#: The niceness of processes that start or end: beyond the road's 10, with a thirtieth of a lane's share of CPU time.
#: With idle priority, which gets next to none, starts took seconds on an overloaded machine.
STEPS = 15


def lower_priority(pid: int) -> None:
    """Lower the priority of a process and its descendants; no effect where the system would not allow
    `restore_priority`."""
    _set(pid, STEPS)


def restore_priority(pid: int) -> None:
    """Give a process and its descendants the supervisor's niceness, which lanes, batcher and workers have."""
    _set(pid, 0)


def _set(pid: int, steps: int) -> None:
    try:
        can_restore = _can_restore()
    except RuntimeError:  # no thread can be started now; not cached, so the next call tries again
        return
    if can_restore:
        with suppress(OSError):  # no descriptor is left to find its threads: it keeps its priority
            set_niceness(pid, min(os.getpriority(os.PRIO_PROCESS, 0) + steps, 19))


@functools.cache
def _can_restore() -> bool:
    """Whether the system lets a process that has lowered its priority raise it again. Raises RuntimeError if no thread
    can be started to try it.

    The system does where the limit "nice" is 20 or more, or with CAP_SYS_NICE; that of a user namespace does not count.
    A thread tries it, since each thread has a niceness of its own.
    """
    tried: list[bool] = []
    thread = threading.Thread(target=lambda: tried.append(_try_to_restore()))
    thread.start()
    thread.join()
    return tried == [True]


def _try_to_restore() -> bool:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, min(own + STEPS, 19))
    try:
        os.setpriority(os.PRIO_PROCESS, 0, own)
    except PermissionError:
        return False
    return True
