"""How long a request would wait, learned from what has been executed: one that would be late is refused at once.

An instance is at work for as long as its executions take, as the batcher sees it: from when it was given one, or had
finished the one before, until it is free again. What is queued is shared out among the instances like water among
vessels, each filled already with what it is at. Pure policy, runs in the batcher; models without deadlines have none.
Rules: nobody is refused before enough is known, nor while an instance is idle, so an estimate that is wrong, or has
become so, is corrected by the executions that it lets happen.
"""

from collections import deque
from typing import NamedTuple

from shoal.errors import UnavailableError

#: Executions that are remembered: after half as many a new speed is the typical one (ours).
WINDOW = 16
#: Of them, the slowest and the quickest per row, which count for nothing: a pause of the machine is no speed (ours).
TRIM = 2
#: Executions without which nobody is refused (ours).
MIN_KNOWN = 4
#: A queue is thought so much longer than it looks: under overload each request that is let in is the last one that may
#: be, and what comes late was executed in vain. (Simulated, executions of 10 ms that drift between 7 and 16, 10 times
#: what one instance can take, 200 ms: at 1 8 % of the capacity is late, at 1.25 3 %; more refuses whom it could serve.)
CAUTION = 1.25


class LateError(UnavailableError):
    """A request would be late: it needs so long, and has so long."""

    def __init__(self, needed_ns: int, left_ns: int) -> None:
        super().__init__(f"{needed_ns} ns are needed, {left_ns} ns are left")
        self.needed_ns = needed_ns
        self.left_ns = left_ns


class _Execution(NamedTuple):
    """One that has ended."""

    ns_per_row: float
    rows: int
    duration_ns: int


class Admission:
    """Of one model: how fast rows are executed, and when each instance will be free."""

    __slots__ = ("_execution_ns", "_executions", "_instances", "_is_stale", "_ns_per_row")

    def __init__(self) -> None:
        # Changed by add_instance, remove_instance, begin and complete.
        #: Instance → since when it is at its first execution, and the rows of those it has, in their order. One that
        #: was there before is known once it is given something.
        self._instances: dict[int, tuple[int, deque[int]]] = {}
        self._executions: deque[_Execution] = deque(maxlen=WINDOW)
        # Worked out of these when somebody asks.
        self._is_stale = False
        self._ns_per_row = 0.0
        self._execution_ns = 0

    def add_instance(self, instance: int) -> None:
        """A new one; what it may have been given by somebody else is not known."""
        self._instances.setdefault(instance, (0, deque()))

    def remove_instance(self, instance: int) -> None:
        """It executes nothing any more, or nothing that anybody waits for."""
        self._instances.pop(instance, None)

    def begin(self, instance: int, rows: int, now_ns: int) -> None:
        """It was given an execution."""
        since_ns, executions = self._instances.get(instance) or (0, deque())
        self._instances[instance] = since_ns if executions else now_ns, executions
        executions.append(rows)

    def complete(self, instance: int, now_ns: int) -> None:
        """It has ended one, the first of those that it has."""
        since_ns, executions = self._instances.get(instance) or (0, deque())
        if executions:
            rows, duration_ns = executions.popleft(), now_ns - since_ns
            self._executions.append(_Execution(duration_ns / rows, rows, duration_ns))
            self._is_stale = True
            self._instances[instance] = now_ns, executions

    @property
    def execution_ns(self) -> int:
        """Three of four executions take no longer; 0 where that is not known yet."""
        self._work_out()
        return self._execution_ns

    def wait_ns(self, rows_before: int, now_ns: int) -> int:
        """In how long an instance would begin what is behind so many queued rows; 0 where that is not known yet."""
        self._work_out()
        if not self._execution_ns or not self._instances:
            return 0
        frees_ns = sorted([self._free_in_ns(*each, now_ns) for each in self._instances.values()])
        if not frees_ns[0] and not rows_before:
            return 0
        # Vessels are filled from the lowest: up to the level of the next one, as long as there is water.
        water_ns, filled_ns = rows_before * self._ns_per_row, 0.0
        for count, free_ns in enumerate(frees_ns):
            if count and count * free_ns - filled_ns >= water_ns:
                return int(CAUTION * (water_ns + filled_ns) / count)
            filled_ns += free_ns
        return int(CAUTION * (water_ns + filled_ns) / len(frees_ns))

    def _free_in_ns(self, since_ns: int, executions: deque[int], now_ns: int) -> float:
        """When an instance has ended all that it has; one that takes longer than usual is thought to end now."""
        if not executions:
            return 0
        ahead_ns = self._ns_per_row * (sum(executions) - executions[0])
        return ahead_ns + max(0, since_ns + self._ns_per_row * executions[0] - now_ns)

    def _work_out(self) -> None:
        if not self._is_stale or len(self._executions) < MIN_KNOWN:
            return
        self._is_stale = False
        by_speed = sorted(self._executions)
        trim = TRIM * len(by_speed) // WINDOW
        kept = by_speed[trim : len(by_speed) - trim]
        self._ns_per_row = sum([each.duration_ns for each in kept]) / sum([each.rows for each in kept])
        durations_ns = sorted([each.duration_ns for each in self._executions])
        self._execution_ns = durations_ns[len(durations_ns) * 3 // 4] or 1
