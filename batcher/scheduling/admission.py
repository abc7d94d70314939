"""Prediction of a request's wait, learned from past executions; a request that would be late is refused at once.

The batcher times an execution from when the instance was given the batch, or had finished the batch before, until the
instance is free again. The prediction gives each queued row to the instance that will be free first. Only models with
deadlines have a prediction. Rules: no request is refused before enough executions are known, nor while an instance is
idle; so an estimate that is wrong is corrected by the executions that still take place. Pure policy, runs in the
batcher.
"""

from collections import deque
from typing import NamedTuple

from shoal.errors import UnavailableError

#: Executions that are remembered (ours). A lasting change of speed shows in the estimate after half as many.
WINDOW = 16
#: How many of the slowest executions per row, and of the quickest, are ignored: a pause of the machine would distort
#: the speed (ours).
TRIM = 2
#: With fewer executions known, no request is refused (ours).
MIN_KNOWN = 4
#: The predicted wait is raised by this factor: under overload every admitted request is just in time by the estimate,
#: and one that turns out to be late is executed in vain. (Simulated with executions of 10 ms that drift between 7 and
#: 16, a load of 10 times the capacity of one instance and deadlines of 200 ms: with 1, 8 % of the capacity goes to late
#: requests, with 1.25, 3 %; a higher factor refuses requests that would have been in time.)
CAUTION = 1.25


class LateError(UnavailableError):
    """The refusal of a request that would be late: the time it needs, and the time it has, in ns."""

    def __init__(self, needed_ns: int, left_ns: int) -> None:
        super().__init__(f"{needed_ns} ns are needed, {left_ns} ns are left")
        self.needed_ns = needed_ns
        self.left_ns = left_ns


class _Execution(NamedTuple):
    """An execution that has ended."""

    ns_per_row: float
    rows: int
    duration_ns: int


class Admission:
    """One model's speed per row, and when each of its instances will be free."""

    __slots__ = ("_execution_ns", "_executions", "_instances", "_is_stale", "_ns_per_row")

    def __init__(self) -> None:
        # Changed by add_instance, remove_instance, begin and complete. Instance → when the first of its unfinished
        # executions began, and the rows of each of them, in order. An instance that is older than this object is added
        # with its next execution.
        self._instances: dict[int, tuple[int, deque[int]]] = {}
        self._executions: deque[_Execution] = deque(maxlen=WINDOW)
        # Derived from `_executions` when needed.
        self._is_stale = False
        self._ns_per_row = 0.0
        self._execution_ns = 0

    def add_instance(self, instance: int) -> None:
        """Add an instance, as idle."""
        self._instances.setdefault(instance, (0, deque()))

    def remove_instance(self, instance: int) -> None:
        """Remove an instance that is given no further batches; its running executions are forgotten."""
        self._instances.pop(instance, None)

    def begin(self, instance: int, rows: int, now_ns: int) -> None:
        """Note that an instance was given an execution."""
        since_ns, executions = self._instances.get(instance) or (0, deque())
        self._instances[instance] = since_ns if executions else now_ns, executions
        executions.append(rows)

    def complete(self, instance: int, now_ns: int) -> None:
        """Note that an instance has ended the first of its executions."""
        since_ns, executions = self._instances.get(instance) or (0, deque())
        if executions:
            rows, duration_ns = executions.popleft(), now_ns - since_ns
            self._executions.append(_Execution(duration_ns / rows, rows, duration_ns))
            self._is_stale = True
            self._instances[instance] = now_ns, executions

    @property
    def execution_ns(self) -> int:
        """The time in ns that three of four executions do not exceed; 0 while unknown."""
        self._work_out()
        return self._execution_ns

    def wait_ns(self, rows_before: int, now_ns: int) -> int:
        """The time in ns until an instance would begin a request behind `rows_before` queued rows; 0 while unknown."""
        self._work_out()
        if not self._execution_ns or not self._instances:
            return 0
        frees_ns = sorted([self._free_in_ns(*each, now_ns) for each in self._instances.values()])
        if not frees_ns[0] and not rows_before:
            return 0
        # The queued work is divided among the first `count` instances, which are free before the work is done, so that
        # all of them end at one time. `busy_ns` is the sum of their times until they are free.
        queued_ns, busy_ns = rows_before * self._ns_per_row, 0.0
        for count, free_ns in enumerate(frees_ns):
            if count and count * free_ns - busy_ns >= queued_ns:
                return int(CAUTION * (queued_ns + busy_ns) / count)
            busy_ns += free_ns
        return int(CAUTION * (queued_ns + busy_ns) / len(frees_ns))

    def _free_in_ns(self, since_ns: int, executions: deque[int], now_ns: int) -> float:
        """The time in ns until an instance ends all its executions. An execution that takes longer than usual is
        assumed to end now."""
        if not executions:
            return 0
        ahead_ns = self._ns_per_row * (sum(executions) - executions[0])
        return ahead_ns + max(0, since_ns + self._ns_per_row * executions[0] - now_ns)

    def _work_out(self) -> None:
        """Update the figures that are derived from the last executions."""
        if not self._is_stale or len(self._executions) < MIN_KNOWN:
            return
        self._is_stale = False
        by_speed = sorted(self._executions)
        trim = TRIM * len(by_speed) // WINDOW
        kept = by_speed[trim : len(by_speed) - trim]
        self._ns_per_row = sum([each.duration_ns for each in kept]) / sum([each.rows for each in kept])
        durations_ns = sorted([each.duration_ns for each in self._executions])
        self._execution_ns = durations_ns[len(durations_ns) * 3 // 4] or 1
