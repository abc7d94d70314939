"""Stopped processes: a process of the server that a stray SIGSTOP has stopped is resumed, or killed the second time.

A stopped process may hold what healthy ones need: a stopped arbiter replaces no lane, a stopped poller answers no load.
To resume it costs nothing, to kill it costs, for an arbiter, all connections of its lanes. Workers are watched until
they are up, since a load may take minutes; then they are left alone, as a model may be inspected, and their executions
have a limit (hangs.py). A process under a debugger counts as tracing, not as stopped, and a machine that stands still
as a whole stops none. Runs in the supervisor; `Stops` is pure.
"""

import logging
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.process import stat_fields
from shoal.supervisor.event_loop import EventLoop

_log = logging.getLogger(__name__)

#: How long a process may be stopped (ours): longer than the batcher and front ends that owe an acknowledgement, which
#: are replaced after one second.
STOPPED_S = 3.0
#: A process that is stopped again within this time after it was resumed is killed (ours).
AGAIN_WITHIN_S = 60.0
#: Seconds between two checks (ours).
LOOK_S = 0.5


class Watched(NamedTuple):
    """A process of the server that must not be stopped. `send` sends it a signal, unless it has ended."""

    pid: int
    name: str
    send: Callable[[int], object]


class Stops:
    """The processes that are stopped, and since when. Pure: from observations and the time it returns signals."""

    def __init__(self) -> None:
        # Changed by look: by pid, the time of the first look that found the process stopped, and of its resumption.
        self._since_s: dict[int, float] = {}
        self._resumed_s: dict[int, float] = {}

    def look(self, now_s: float, stopped: Iterable[int], *, is_late: bool = False) -> dict[int, signal.Signals]:
        """The signal for each process that has been stopped for too long, by pid. Before a late look the supervisor
        itself stood still, perhaps with the machine: all times begin again."""
        before = {} if is_late else self._since_s
        self._since_s = {pid: before.get(pid, now_s) for pid in stopped}
        self._resumed_s = {pid: at_s for pid, at_s in self._resumed_s.items() if now_s - at_s <= AGAIN_WITHIN_S}
        due = [pid for pid, since_s in self._since_s.items() if now_s - since_s >= STOPPED_S]
        signals = {pid: signal.SIGKILL if pid in self._resumed_s else signal.SIGCONT for pid in due}
        for pid in due:
            self._since_s[pid] = now_s  # the next signal follows after STOPPED_S more
            self._resumed_s[pid] = now_s
        return signals


class StoppedProcesses:
    """Resumes, or kills, the server's own processes that are stopped. `watched` lists them."""

    def __init__(self, loop: EventLoop, watched: Callable[[], Iterable[Watched]]) -> None:
        self._loop = loop
        self._watched = watched
        self._stops = Stops()

    def watch(self) -> None:
        """Check all processes every LOOK_S from now on."""
        self._loop.every(LOOK_S, lambda late_s: self.look(self._loop.now_s(), is_late=late_s > LOOK_S))

    def look(self, now_s: float, *, is_late: bool = False) -> None:
        """Send each process that has been stopped for too long its signal."""
        watched: Mapping[int, Watched] = {each.pid: each for each in self._watched()}
        stopped = [pid for pid in watched if is_stopped(pid)]
        for pid, number in self._stops.look(now_s, stopped, is_late=is_late).items():
            outcome = "resumed" if number == signal.SIGCONT else "killed, as it was stopped again"
            _log.error("%s (pid %d) has been stopped for %g s; it is %s", watched[pid].name, pid, STOPPED_S, outcome)
            watched[pid].send(number)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (state T of proc_pid_stat(5)); False where it has ended."""
    try:
        return stat_fields(Path(f"/proc/{pid}/stat"))[:1] == ["T"]
    except OSError:  # the process has ended, or no descriptor is left: the next look may tell
        return False
