"""Processes that start or end give way to those that serve: a worker until it is up, its zygote, a worker that ends.

A start is tens of milliseconds of CPU, or a framework's many seconds. At the niceness of all it holds a request up for
milliseconds each time that the next process on its way is woken, and the road, which is nice itself, far longer. Until
a server serves no process gives way, or its start would wait for all else that the machine does. Runs in the
supervisor.
"""

import functools
import os
import threading

from shoal.process import set_niceness

#: Nicer than the road, which has 10, with a thirtieth of a lane's share. Idle priority, next to nothing, made starts
#: take seconds on an overloaded machine.
STEPS = 15


def give_way(pid: int) -> None:
    """Let a process have what the others leave, and a little more. Where it could not come back, nothing happens."""
    _set(pid, STEPS)


def join_in(pid: int) -> None:
    """Let a process be one of those who serve."""
    _set(pid, 0)


def _set(pid: int, steps: int) -> None:
    if _may_come_back():
        set_niceness(pid, min(os.getpriority(os.PRIO_PROCESS, 0) + steps, 19))


@functools.cache
def _may_come_back() -> bool:
    """Whether the system lets a process that has become nicer be as before.

    It does where the limit "nice" is 20 or more, or with CAP_SYS_NICE, unless that is a user namespace's. So a thread,
    which has a niceness of its own, tries it.
    """
    tried: list[bool] = []
    thread = threading.Thread(target=lambda: tried.append(_come_back()))
    thread.start()
    thread.join()
    return tried == [True]


def _come_back() -> bool:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, min(own + STEPS, 19))
    try:
        os.setpriority(os.PRIO_PROCESS, 0, own)
    except PermissionError:
        return False
    return True
