"""Silence: how long a process has sent nothing though it could have.

A process that waits for a core is not to blame: where many more are runnable than there are cores, it waits for
seconds, and its successor would wait as long. So all time counts while the process sleeps or is stopped; while it is
runnable, or waits for a page of memory or a disk, only the CPU time that it has used counts, or a share of that. Pure,
but for `observe`. Runs in the supervisor.
"""

import os
from pathlib import Path
from typing import NamedTuple

from shoal.process import stat_fields

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Observed(NamedTuple):
    """The kernel's view of a process: whether it is runnable, or waits for memory or a disk, which no signal ends; and
    its CPU time so far."""

    is_runnable: bool
    cpu_s: float


class Silence:
    """The silence of one process; begins when this object is made."""

    def __init__(self, now_s: float, busy_share: float = 1.0) -> None:
        self._busy_share = busy_share
        # Changed by look and reset: the time of the last of these, the CPU time used by then (None: not known, so that
        # none counts before the next observation), and the silence so far.
        self._since_s = now_s
        self._cpu_s: float | None = 0.0
        self._silent_s = 0.0

    def reset(self, now_s: float) -> None:
        """Count silence from now on: the process has shown progress, or could not run."""
        if now_s != self._since_s:  # otherwise the process has just been observed
            self._since_s, self._cpu_s = now_s, None
        self._silent_s = 0.0

    def look(self, now_s: float, observed: Observed | None) -> float:
        """Seconds of silence so far; time without an observation does not count."""
        if observed is None:
            self._since_s, self._cpu_s = now_s, None
            return self._silent_s
        elapsed_s = now_s - self._since_s
        used_s = 0.0 if self._cpu_s is None else observed.cpu_s - self._cpu_s
        self._silent_s += min(elapsed_s, used_s) * self._busy_share if observed.is_runnable else elapsed_s
        self._since_s, self._cpu_s = now_s, observed.cpu_s
        return self._silent_s


def observe(pid: int) -> Observed | None:
    """Observe one of the server's processes with all its threads, from proc_pid_stat(5); an ended one counts as asleep.
    None where /proc cannot be read, for instance because this process has no descriptor left."""
    try:
        user, system = stat_fields(Path(f"/proc/{pid}/stat"))[11:13]
        states = [_state(thread) for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return Observed(False, 0.0)
    except OSError:
        return None
    return Observed("R" in states or "D" in states, (int(user) + int(system)) / _TICKS_PER_S)


def _state(thread: Path) -> str:
    try:
        return stat_fields(thread / "stat")[0]
    except (FileNotFoundError, ProcessLookupError):  # the thread has just ended
        return ""
