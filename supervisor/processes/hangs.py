"""When a worker is taken to hang: it has been at one batch, without a response, for longer than its execution limit.

A response that the batch sends restarts the clock, which stands still while the worker waits for clients to read. First
SIGABRT, for which a worker dumps its stack, a second later SIGKILL. A look that comes late excuses all workers: what
stopped the supervisor (a suspended machine, a debugger, a starved host) stopped them, too. Pure: given what was seen
and the time, it returns which to end. Runs in the supervisor.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Between two looks: while an instance executes, and while none does (ours).
BUSY_INTERVAL_NS = 250_000_000
IDLE_INTERVAL_NS = 1_000_000_000
#: A look later than this is a gap. Deadlines move by it, once.
GAP_NS = 5_000_000_000
#: From SIGABRT to SIGKILL.
GRACE_NS = 1_000_000_000


class Execution(NamedTuple):
    """A batch that a look found on a worker: since `began_ns` it is executed without a response or a wait for a client;
    where that is 0 it waits to be taken up."""

    worker: int  # a number that no other worker has
    number: int  # of the batch begun last
    began_ns: int
    limit_ns: int


class Ending(NamedTuple):
    """A worker to be sent a signal."""

    worker: int
    signal: signal.Signals


class HangCheck(NamedTuple):
    """What a look came to."""

    endings: list[Ending]
    gap_ns: int  # by how much deadlines were moved
    next_ns: int  # the pause until the next one


@dataclass(slots=True)
class _Watched:
    execution: Execution
    began_ns: int
    aborted_ns: int = 0
    is_killed: bool = False

    def excuse(self, since_ns: int, now_ns: int) -> None:
        """No process could run from `since_ns` to `now_ns`: the machine stood still."""
        self.began_ns += now_ns - max(self.began_ns, since_ns)
        if self.aborted_ns:
            self.aborted_ns += now_ns - max(self.aborted_ns, since_ns)


class Hangs:
    """Who executes what since when, and who is being ended for it."""

    def __init__(self) -> None:
        # Changed by look.
        self._watched: dict[int, _Watched] = {}
        self._due_ns = 0

    def look(self, now_ns: int, executions: Iterable[Execution]) -> HangCheck:
        """Judge what is being executed now; who is not named executes nothing, or has no limit."""
        gap_ns = now_ns - self._due_ns if self._due_ns and now_ns - self._due_ns > GAP_NS else 0
        watched = {each.worker: self._watch(each, now_ns) for each in executions}
        if gap_ns:
            for each in watched.values():
                each.excuse(self._due_ns, now_ns)
        self._watched = watched
        endings = [ending for each in watched.values() for ending in _judge(each, now_ns)]
        next_ns = BUSY_INTERVAL_NS if watched else IDLE_INTERVAL_NS
        self._due_ns = now_ns + next_ns
        return HangCheck(endings, gap_ns, next_ns)

    def _watch(self, execution: Execution, now_ns: int) -> _Watched:
        known = self._watched.get(execution.worker)
        if known is not None and known.execution == execution:
            return known
        if known is not None and known.aborted_ns and known.execution.number == execution.number:
            return known  # a response that comes so late saves it no more
        # The time stands in memory that a model's code can write: what lies ahead began now.
        return _Watched(execution, min(execution.began_ns, now_ns) or now_ns)


def _judge(each: _Watched, now_ns: int) -> Iterable[Ending]:
    if not each.aborted_ns:
        if now_ns - each.began_ns > each.execution.limit_ns:
            each.aborted_ns = now_ns
            yield Ending(each.execution.worker, signal.SIGABRT)
    elif not each.is_killed and now_ns - each.aborted_ns >= GRACE_NS:
        each.is_killed = True
        yield Ending(each.execution.worker, signal.SIGKILL)
