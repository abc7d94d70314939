"""One rollout: which share of the requests the canary has, and when that grows or ends. Pure: the time comes in as an
argument, and what both versions have done is handed in as figures.

A guard trips only on figures that a version within its bound would hardly ever have (once in ten thousand looks): a few
slow requests at the beginning of a step end no rollout, and a version that fails or is slow with every request ends it
after a handful of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, log, sqrt
from typing import NamedTuple

from shoal.latency_buckets import bucket_ns
from shoal.rollout_settings import DISAGREE, ERRORS, QUANTILES, Guard, RolloutPlan

#: A guard trips where a version that kept to the bound would do as badly with this probability at most (ours).
_IMPROBABLE = 1e-4
#: By how many standard deviations the stable version's own share of slow requests may be underestimated (ours).
_DEVIATIONS = 3.0


class VersionFigures(NamedTuple):
    """The figures of one version in a step; latencies as pairs of bucket and count, ascending."""

    num_requests: int = 0
    num_errors: int = 0
    latencies: tuple[tuple[int, int], ...] = ()

    @classmethod
    def unpack(cls, packed: Sequence[int]) -> "VersionFigures":
        """The figures in a message of the batcher: requests, errors, then each bucket of latencies and its count."""
        return cls(packed[0], packed[1], tuple(zip(packed[2::2], packed[3::2], strict=True)))

    @property
    def num_answered(self) -> int:
        """Number of requests that were answered, and so have a latency."""
        return sum([count for _, count in self.latencies])

    def num_over(self, limit_ns: float) -> int:
        """Number of answered requests that took longer than `limit_ns`; none of those in the limit's own bucket are
        counted."""
        return sum([count for bucket, count in self.latencies if bucket_ns(bucket) > limit_ns])

    def quantile_ns(self, quantile: float) -> int:
        """The latency, rounded up to its bucket's bound, below which this share of the requests stayed; 0 if no
        request was answered."""
        left = quantile * self.num_answered
        for bucket, count in self.latencies:
            left -= count
            if left <= 0:
                return bucket_ns(bucket + 1)
        return 0


class Comparison(NamedTuple):
    """Answers of the canary to mirrored requests in a step, compared with the stable version's (shadow)."""

    num_compared: int
    num_disagreed: int


class Figures(NamedTuple):
    """The figures of a step of both versions."""

    stable: VersionFigures
    canary: VersionFigures
    waiting: tuple[int, ...] = ()  # the bucket of the time that each open request of the canary's has taken so far
    comparison: Comparison | None = None  # None: shadow is off


NO_FIGURES = Figures(VersionFigures(), VersionFigures())


class Phase(str, Enum):
    """The state of a rollout."""

    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"

    @property
    def is_open(self) -> bool:
        """Whether requests are still divided."""
        return self in (Phase.RUNNING, Phase.PAUSED)


class Verdict(Enum):
    """The decision about a step from its figures."""

    STAY = 0
    ADVANCE = 1  # the step is over, and `Rollout.step` is the next one already
    PROMOTE = 2
    ROLL_BACK = 3


@dataclass(slots=True)
class Rollout:
    """A plan, and how far it has come. Changed by `observe` and by rollouts.py."""

    plan: RolloutPlan
    stable: int  # the number of the stable version
    began_s: float  # when the present step began, monotonic
    step: int = 0  # index of the present step
    phase: Phase = Phase.RUNNING
    reason: str = ""  # why the rollout was rolled back; "" where it was not
    figures: Figures = NO_FIGURES  # the figures of the present step that `observe` has been given last
    #: The stable version's figures that the canary is compared with: those of the last step in which the stable version
    #: answered as many requests as the plan demands.
    baseline: VersionFigures = NO_FIGURES.stable

    @property
    def share(self) -> float:
        """The canary's share of the requests, in percent."""
        if self.phase.is_open:
            return self.plan.steps[self.step]
        return 100.0 if self.phase is Phase.PROMOTED else 0.0

    def observe(self, now_s: float, figures: Figures, *, keeps_step: bool = False) -> Verdict:
        """Look at the figures of the present step, and move on if it is over, unless the step is to be kept."""
        if not self.phase.is_open:
            return Verdict.STAY
        self.figures = figures
        if figures.stable.num_answered >= max(1, self.plan.min_requests):
            self.baseline = figures.stable
        if reason := next(filter(None, map(self._broken, self.plan.guards)), ""):
            return self.roll_back(reason)
        if self.phase is Phase.PAUSED or keeps_step or not self._is_over(now_s):
            return Verdict.STAY
        if self.step + 1 < len(self.plan.steps):
            self.step += 1
            self.began_s, self.figures = now_s, NO_FIGURES
            return Verdict.ADVANCE
        if self.share < 100:
            return Verdict.STAY
        self.phase = Phase.PROMOTED
        return Verdict.PROMOTE

    def roll_back(self, reason: str) -> Verdict:
        """End the rollout: the stable version has all requests again."""
        self.phase, self.reason = Phase.ROLLED_BACK, reason
        return Verdict.ROLL_BACK

    def _is_over(self, now_s: float) -> bool:
        plan, num_requests = self.plan, self.figures.canary.num_requests
        if num_requests < max(plan.min_requests, plan.every_requests):
            return False
        if plan.every_s and now_s - self.began_s < plan.every_s:
            return False
        has_baseline = self.baseline.num_answered >= plan.min_requests
        return has_baseline or not any(each.is_relative and each.figure in QUANTILES for each in plan.guards)

    # --- guards ---

    def _broken(self, guard: Guard) -> str:
        """Why the canary does not keep to a guard, for people; empty if it does."""
        if guard.figure == ERRORS:
            return self._broken_by_errors(guard)
        if guard.figure == DISAGREE:
            compared = self.figures.comparison or Comparison(0, 0)
            if is_improbable(compared.num_disagreed, compared.num_compared, guard.bound):
                return f"guard {guard}: {_share(compared.num_disagreed, compared.num_compared)} compared answers differ"
            return ""
        return self._broken_by_latency(guard)

    def _broken_by_errors(self, guard: Guard) -> str:
        canary, stable = self.figures.canary, self.figures.stable
        bound = guard.bound
        if guard.is_relative and not self.plan.retries and stable.num_requests:
            # (With retries, the stable version executes what the canary has failed; a request that it fails, too, is no
            # error of the canary's, so its own errors need no allowance.)
            bound += stable.num_errors / stable.num_requests
        if not is_improbable(canary.num_errors, canary.num_requests, bound):
            return ""
        failed = _share(canary.num_errors, canary.num_requests)
        return f"guard {guard}: version {self.plan.version} failed {failed} requests"

    def _broken_by_latency(self, guard: Guard) -> str:
        quantile, canary, base = QUANTILES[guard.figure], self.figures.canary, self.baseline
        limit_ns, share = guard.bound * 1e9, 1 - quantile
        if guard.is_relative:
            num_base = base.num_answered
            if not num_base:
                return ""
            was_ns = base.quantile_ns(quantile)
            limit_ns = was_ns + (guard.bound * 1e9 if guard.is_time else guard.bound * was_ns)
            num_slow = base.num_over(limit_ns)
            share = max(share, (num_slow + _DEVIATIONS * sqrt(num_slow + 1) + 1) / num_base)
        waiting = sum([bucket_ns(bucket) > limit_ns for bucket in self.figures.waiting])
        num_over, num = canary.num_over(limit_ns) + waiting, canary.num_answered + waiting
        if not is_improbable(num_over, num, share):
            return ""
        than = f", version {self.stable} has {base.quantile_ns(quantile) / 1e6:.3g} ms" if guard.is_relative else ""
        return (
            f"guard {guard}: {num_over} of {num} requests of version {self.plan.version} took longer than "
            f"{limit_ns / 1e6:.3g} ms{than}"
        )


def is_improbable(num_bad: int, num: int, share: float) -> bool:
    """Whether `num_bad` bad ones among `num` requests would hardly ever occur if `share` were the true share of bad
    ones. Computed by Chernoff's bound, which is a little above that probability: a doubtful case is False."""
    if not num or num_bad <= share * num:
        return False
    if share <= 0:
        return True
    rate = num_bad / num
    divergence = rate * log(rate / share)
    if rate < 1:
        divergence += (1 - rate) * log((1 - rate) / (1 - share))
    return exp(-num * divergence) <= _IMPROBABLE


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / max(1, whole):.3g} %)"
