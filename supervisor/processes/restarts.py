"""Restarts of a dead process: the pause before each, and the breaker that stops a worker's. Pure; in the supervisor.

    closed ─5 deaths in 60 s, none after a completed batch─► FAILED ─30 s─► half open: one attempt ─death─► FAILED
       ▲    or 5 starts in a row, none of which was ready                       │
       └──────────────── a completed batch, or 60 s of service ◄────────────────┘

Whether a death is forgiven is decided at the next death, by what the worker had done since it was ready.
"""

from typing import NamedTuple

#: Pauses before a restart, by the number of deaths in a row; none before the first. Ours, as all figures here.
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: After so long in service, with or without batches, a worker's next death counts as the first.
HEALTHY_AFTER_S = 60.0
#: Deaths in a row that open the breaker, and the seconds within which they must come. Deaths of workers that were never
#: ready may be further apart: a large model that finds too little memory may load for minutes each time.
MAX_DEATHS, WITHIN_S = 5, 60.0
HALF_OPEN_AFTER_S = 30.0


class Verdict(NamedTuple):
    """The consequence of a worker's death."""

    pause_s: float  # the pause until the next start
    is_failed: bool  # the instance is FAILED; the next start is its one attempt to recover


class Restarts:
    """The deaths of one instance's workers, and the verdict on each."""

    def __init__(self) -> None:
        # Changed by died. Deaths in a row, and deaths in a row of workers that were never ready.
        self._num_deaths = self._num_failed_starts = 0
        self._deaths_s: list[float] = []  # the times of the deaths within the last WITHIN_S
        self._is_half_open = False  # the next start is the one attempt of a FAILED instance

    def died(self, now_s: float, served_s: float, *, has_completed: bool) -> Verdict:
        """The verdict on the death of a worker that had been ready for `served_s` seconds (0: never).

        A worker that had completed a batch is started again at once: a single input may be to blame.
        """
        if has_completed or served_s >= HEALTHY_AFTER_S:
            self._num_deaths, self._num_failed_starts, self._deaths_s, self._is_half_open = 0, 0, [], False
        if has_completed:
            return Verdict(0.0, is_failed=False)
        self._num_deaths += 1
        self._num_failed_starts = 0 if served_s else self._num_failed_starts + 1
        self._deaths_s = [death_s for death_s in self._deaths_s if now_s - death_s <= WITHIN_S] + [now_s]
        if self._is_half_open or max(len(self._deaths_s), self._num_failed_starts) >= MAX_DEATHS:
            self._is_half_open = True
            return Verdict(HALF_OPEN_AFTER_S, is_failed=True)
        return Verdict(backoff_s(self._num_deaths), is_failed=False)


class Pauses:
    """The pauses before a process that has no breaker is started again."""

    def __init__(self, longest_s: float = BACKOFF_S[-1]) -> None:
        self._longest_s = longest_s
        # Changed by started and ended: ends in a row, and the time of the last start.
        self._num_deaths = 0
        self._started_s = 0.0

    def started(self, now_s: float) -> None:
        self._started_s = now_s

    def ended(self, now_s: float) -> float:
        """The pause that follows an end, or a start that has failed. After a minute of life an end counts as the
        first."""
        self._num_deaths = 1 if now_s - self._started_s >= HEALTHY_AFTER_S else self._num_deaths + 1
        return min(backoff_s(self._num_deaths), self._longest_s)


def backoff_s(num_deaths: int) -> float:
    """The pause before the restart that follows the `num_deaths`-th death in a row."""
    return BACKOFF_S[min(max(num_deaths, 1), len(BACKOFF_S)) - 1]
