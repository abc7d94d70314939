"""Autoscaling: how many instances a version should have, by their load and requests' waits. Pure policy.

    overloaded for a second: half as many again, at most every five seconds
    idle enough for 30 s that one less would do: one less

The time and what is observed are arguments; the policy starts nothing. After a gap (a suspended machine, a starved
host) observations say nothing about the load, and no decision is made. Runs in the supervisor.
"""

from typing import NamedTuple

#: Busy shares: above the first there are too few instances; where one instance less would stay below the second, there
#: is one too many. They lie so far apart that neither decision leads to the other while the load stays: after an
#: increase by half, one instance less would still be busy for more than 0.53 of the time (ours, as all figures here).
BUSY_ABOVE, BUSY_BELOW = 0.8, 0.5
#: For how long all observations must agree before a decision: more instances are urgent, less memory is not.
OVERLOADED_NS, IDLE_NS = 1_000_000_000, 30_000_000_000
#: The pause between two increases: instances of most models are ready within it and show their effect.
COOLDOWN_NS = 5_000_000_000
#: An observation later than this after the one before is a gap.
GAP_NS = 5_000_000_000


class Load(NamedTuple):
    """An observation of one model version at one time."""

    num_instances: int  # those that serve, without those that start or retire
    busy_share: float  # the share of their time since the last observation that they executed, 0 to 1
    queue_age_ns: int  # how long the oldest waiting request has waited; 0 where none waits


class Autoscaler:
    """Keeps the number of instances that one model version should have between its bounds."""

    def __init__(self, bounds: tuple[int, int], queue_age_ns: int, wanted: int) -> None:
        """`queue_age_ns`: a longer wait of a request means too few instances; `wanted`: the number of instances now."""
        self._least, self._most = bounds
        self._queue_age_ns = queue_age_ns
        # Changed by observe; `wanted` also by scaling by hand.
        self.wanted = min(max(wanted, self._least), self._most)
        self._num_instances = 0  # at the last observation
        self._looked_ns: int | None = None
        self._overloaded_since_ns: int | None = None
        self._idle_since_ns: int | None = None
        self._raised_ns: int | None = None

    def observe(self, now_ns: int, load: Load) -> int:
        """The number of instances wanted now. Call it at least once a second."""
        has_gap = self._looked_ns is None or now_ns - self._looked_ns > GAP_NS
        has_changed = load.num_instances != self._num_instances
        self._looked_ns, self._num_instances = now_ns, load.num_instances
        if has_gap:
            self._overloaded_since_ns = self._idle_since_ns = None
            return self.wanted
        waits, work = load.queue_age_ns > self._queue_age_ns, load.busy_share * load.num_instances
        # A number of instances that has just changed must have the time to show its effect.
        is_overloaded = (waits or load.busy_share > BUSY_ABOVE) and not has_changed
        is_idle = not waits and work < BUSY_BELOW * (load.num_instances - 1)
        self._overloaded_since_ns = _since(self._overloaded_since_ns, is_overloaded, now_ns)
        self._idle_since_ns = _since(self._idle_since_ns, is_idle, now_ns)
        if _has_lasted(self._overloaded_since_ns, OVERLOADED_NS, now_ns):
            if self._raised_ns is None or now_ns - self._raised_ns >= COOLDOWN_NS:
                self._raise(now_ns, load.num_instances)
        elif _has_lasted(self._idle_since_ns, IDLE_NS, now_ns):
            self._idle_since_ns = now_ns
            self.wanted = max(min(self.wanted, load.num_instances) - 1, self._least)
        return self.wanted

    def _raise(self, now_ns: int, num_instances: int) -> None:
        """Raise the wanted number, by half of the instances that serve; instances that still start are part of the
        increase."""
        wanted = min(num_instances + max(1, num_instances // 2), self._most)
        if wanted > self.wanted:
            self.wanted = wanted
            self._raised_ns = now_ns


def _since(before_ns: int | None, holds: bool, now_ns: int) -> int | None:
    """Since when a condition has held at every observation; None where it does not hold."""
    if not holds:
        return None
    return now_ns if before_ns is None else before_ns


def _has_lasted(since_ns: int | None, duration_ns: int, now_ns: int) -> bool:
    return since_ns is not None and now_ns - since_ns >= duration_ns
