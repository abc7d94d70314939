"""Hanging workers: those that execute one batch for longer than the execution limit without a response.

A response that the batch sends restarts the clock, which stands still while the worker waits for clients to read. A
hanging worker is sent SIGABRT, for which it dumps its stack, and a second later SIGKILL. A check that comes late
excuses all workers: what stopped the supervisor (a suspended machine, a debugger, a starved host) stopped them, too.
Pure: from observations and the time it returns the workers to end. Runs in the supervisor.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Time between two checks: while an instance executes, and while none does (ours).
BUSY_INTERVAL_NS = 250_000_000
IDLE_INTERVAL_NS = 1_000_000_000
#: A check that is late by more than this follows a gap, in which nothing could run; batches' deadlines move by the gap.
GAP_NS = 5_000_000_000
#: From SIGABRT to SIGKILL.
GRACE_NS = 1_000_000_000


class Execution(NamedTuple):
    """A batch observed on a worker: it has been executed since `began_ns` without a response or a wait for a client;
    where that is 0, it waits in the worker's ring."""

    worker: int  # the instance's number, never used twice
    number: int  # the number of the batch begun last
    began_ns: int
    limit_ns: int


class Ending(NamedTuple):
    """A worker to end, and the signal for that."""

    worker: int
    signal: signal.Signals


class HangCheck(NamedTuple):
    """The result of a check."""

    endings: list[Ending]
    gap_ns: int  # by how much deadlines were moved; 0: by nothing
    next_ns: int  # the pause until the next check


@dataclass(slots=True)
class _Watched:
    execution: Execution
    began_ns: int
    aborted_ns: int = 0
    is_killed: bool = False

    def excuse(self, since_ns: int, now_ns: int) -> None:
        """Move the batch's times by the part of a standstill of the machine, `since_ns` to `now_ns`, that it covers."""
        self.began_ns += now_ns - max(self.began_ns, since_ns)
        if self.aborted_ns:
            self.aborted_ns += now_ns - max(self.aborted_ns, since_ns)


class Hangs:
    """The batches under execution and their workers, and which of these have been sent a signal."""

    def __init__(self) -> None:
        # Changed by look: the batches under execution, by worker, and when the next check is due.
        self._watched: dict[int, _Watched] = {}
        self._due_ns = 0

    def look(self, now_ns: int, executions: Iterable[Execution]) -> HangCheck:
        """Check the batches that are executed now; a worker that has none here is idle, or has no limit."""
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
            return known  # after SIGABRT a late response changes nothing
        # The time stands in memory that a model's code can write: a time in the future counts as now.
        return _Watched(execution, min(execution.began_ns, now_ns) or now_ns)


def _judge(each: _Watched, now_ns: int) -> Iterable[Ending]:
    if not each.aborted_ns:
        if now_ns - each.began_ns > each.execution.limit_ns:
            each.aborted_ns = now_ns
            yield Ending(each.execution.worker, signal.SIGABRT)
    elif not each.is_killed and now_ns - each.aborted_ns >= GRACE_NS:
        each.is_killed = True
        yield Ending(each.execution.worker, signal.SIGKILL)
