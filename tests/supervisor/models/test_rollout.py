"""The state machine of a rollout on a clock of the test's: steps, guards, and what it takes to roll back."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from shoal.latency_buckets import bucket
from shoal.rollout_settings import read_plan
from shoal.supervisor.models.rollout import (
    Comparison,
    Figures,
    Phase,
    Rollout,
    Verdict,
    VersionFigures,
    is_improbable,
)

MS = 1_000_000


def rollout(**said: object) -> Rollout:
    return Rollout(read_plan({"version": 3, **said}), stable=2, began_s=0.0)


def figures_of(latencies_ms: list[float], num_errors: int = 0) -> VersionFigures:
    counted = Counter([bucket(int(each * MS)) for each in latencies_ms])
    return VersionFigures(len(latencies_ms) + num_errors, num_errors, tuple(sorted(counted.items())))


class Service:
    """Traffic to both versions: each second some requests, divided by the rollout's share."""

    def __init__(
        self, seed: int, made: Rollout, latency_ms: Callable[[Random], float], error_rate: float = 0.0
    ) -> None:
        self.rng, self.rollout = Random(seed), made
        self.latency_ms, self.error_rate = latency_ms, error_rate
        self.now_s, self.shares = 0.0, list[float]()
        self.begin_step()

    def begin_step(self) -> None:
        self.stable: list[float] = []
        self.canary: list[float] = []
        self.num_errors = 0

    def run(self, num_seconds: int, rate: int = 60) -> Phase:
        """Let time pass until the rollout ends."""
        for _ in range(num_seconds):
            self.now_s += 1
            for _ in range(rate):
                if self.rng.random() * 100 >= self.rollout.share:
                    self.stable.append(healthy(self.rng))
                elif self.rng.random() < self.error_rate:
                    self.num_errors += 1
                else:
                    self.canary.append(self.latency_ms(self.rng))
            seen = Figures(figures_of(self.stable), figures_of(self.canary, self.num_errors))
            verdict = self.rollout.observe(self.now_s, seen)
            if verdict is Verdict.ADVANCE:
                self.shares.append(self.rollout.share)
                self.begin_step()
            if not self.rollout.phase.is_open:
                break
        return self.rollout.phase


def healthy(rng: Random) -> float:
    return 2.0 + rng.expovariate(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_version_like_the_stable_one_is_promoted_step_by_step(seed: int) -> None:
    service = Service(seed, rollout(steps="1,10,50,100", every="60s"), healthy)
    assert service.run(600) is Phase.PROMOTED
    assert service.shares == [10, 50, 100]
    assert service.now_s >= 240


@pytest.mark.parametrize("seed", range(4))
def test_a_slower_version_is_rolled_back_soon(seed: int) -> None:
    service = Service(seed, rollout(steps="1,10,50,100", every="60s"), lambda rng: 4 * healthy(rng))
    assert service.run(600) is Phase.ROLLED_BACK
    assert service.now_s < 60
    assert service.rollout.reason.startswith("guard p99=+10%: ")
    assert "version 2 has" in service.rollout.reason


@pytest.mark.parametrize("seed", range(4))
def test_a_version_a_third_slower_does_not_come_through(seed: int) -> None:
    service = Service(seed, rollout(steps="10,50,100", every="60s"), lambda rng: 1.33 * healthy(rng))
    assert service.run(600) is Phase.ROLLED_BACK


@pytest.mark.parametrize("seed", range(4))
def test_a_version_that_fails_is_rolled_back(seed: int) -> None:
    service = Service(seed, rollout(every="60s"), healthy, error_rate=0.05)
    assert service.run(600) is Phase.ROLLED_BACK
    assert service.rollout.reason.startswith("guard errors=+0.1%: version 3 failed ")


def test_a_version_that_always_fails_is_rolled_back_after_two_requests() -> None:
    made = rollout()
    assert made.observe(1, Figures(VersionFigures(), figures_of([], 1))) is Verdict.STAY
    assert made.observe(2, Figures(VersionFigures(), figures_of([], 2))) is Verdict.ROLL_BACK
    assert made.reason == "guard errors=+0.1%: version 3 failed 2 of 2 (100 %) requests"
    assert (made.share, made.observe(3, made.figures)) == (0, Verdict.STAY)


def test_a_version_that_hangs_is_seen_by_the_requests_that_it_has() -> None:
    made = rollout()
    seen = Figures(figures_of([2.0] * 100), VersionFigures(), tuple([bucket(int(1e9))] * 9))
    assert made.observe(1, seen) is Verdict.ROLL_BACK


def test_one_slow_request_at_the_beginning_of_a_step_is_no_reason() -> None:
    made = rollout()
    assert made.observe(1, Figures(figures_of([2.0] * 100), figures_of([500.0]))) is Verdict.STAY


def test_a_step_lasts_until_its_time_is_over_and_there_are_requests_to_judge_by() -> None:
    made = rollout(steps="50,100", every="10s", min_requests=20)
    few = Figures(figures_of([2.0] * 100), figures_of([2.0] * 19))
    enough = Figures(figures_of([2.0] * 100), figures_of([2.0] * 20))
    assert made.observe(1000, few) is Verdict.STAY
    assert made.observe(1001, enough) is Verdict.ADVANCE
    assert (made.share, made.began_s) == (100, 1001)
    at_the_end = Figures(VersionFigures(), figures_of([2.0] * 50))
    assert made.observe(1010.9, at_the_end) is Verdict.STAY
    assert made.observe(1011, at_the_end) is Verdict.PROMOTE
    assert made.phase is Phase.PROMOTED


def test_the_last_step_is_judged_by_the_stable_version_of_the_step_before() -> None:
    made = rollout(steps="50,100", every="10s")
    made.observe(10, Figures(figures_of([2.0] * 200), figures_of([2.0] * 200)))
    assert made.share == 100
    assert made.observe(11, Figures(VersionFigures(), figures_of([20.0] * 50))) is Verdict.ROLL_BACK


def test_steps_by_number_of_requests_ask_no_clock() -> None:
    made = rollout(steps="50,100", every="200requests", min_requests=0)
    assert made.observe(0, Figures(figures_of([2.0] * 9), figures_of([2.0] * 199))) is Verdict.STAY
    assert made.observe(0, Figures(figures_of([2.0] * 9), figures_of([2.0] * 200))) is Verdict.ADVANCE


def test_steps_that_end_below_100_percent_hold_the_last_one_under_its_guards() -> None:
    made = rollout(steps="10", every="1s", min_requests=0)
    assert made.observe(100, Figures(figures_of([2.0] * 9), figures_of([2.0] * 9))) is Verdict.STAY
    assert made.phase is Phase.RUNNING
    assert made.observe(101, Figures(figures_of([2.0] * 9), figures_of([2.0] * 9, 9))) is Verdict.ROLL_BACK


def test_a_paused_rollout_stays_and_keeps_its_guards() -> None:
    made = rollout(steps="50,100", every="1s", min_requests=0)
    made.phase = Phase.PAUSED
    fine = Figures(figures_of([2.0] * 9), figures_of([2.0] * 9))
    assert made.observe(100, fine) is Verdict.STAY
    assert made.observe(101, fine._replace(canary=figures_of([], 5))) is Verdict.ROLL_BACK


def test_disagreement_is_judged_by_the_requests_that_were_compared() -> None:
    made = rollout(guard="disagree<0.5%")
    quiet = Figures(VersionFigures(), VersionFigures())
    assert made.observe(1, quiet) is Verdict.STAY
    assert made.observe(2, quiet._replace(comparison=Comparison(1000, 6))) is Verdict.STAY
    assert made.observe(3, quiet._replace(comparison=Comparison(1000, 30))) is Verdict.ROLL_BACK
    assert made.reason == "guard disagree<0.5%: 30 of 1000 (3 %) compared answers differ"


def test_without_retries_the_canary_may_fail_what_the_stable_version_fails() -> None:
    made = rollout(retry=False, guard="errors=+1%")
    half = Figures(figures_of([2.0] * 100, 100), figures_of([2.0] * 100, 100))
    assert made.observe(1, half) is Verdict.STAY
    assert made.observe(2, half._replace(canary=figures_of([2.0] * 10, 190))) is Verdict.ROLL_BACK


@pytest.mark.parametrize(
    ("num_bad", "num", "share", "expected"),
    [(0, 0, 0.1, False), (1, 1, 0.001, False), (2, 2, 0.001, True), (1, 1, 0.0, True), (10, 1000, 0.01, False),
     (40, 1000, 0.01, True), (5, 5, 1.0, False)],
)  # fmt: skip
def test_what_is_improbable(num_bad: int, num: int, share: float, *, expected: bool) -> None:
    assert is_improbable(num_bad, num, share) is expected


def test_a_version_that_keeps_to_the_bound_hardly_ever_trips() -> None:
    rng, tripped = Random(9), 0
    for _ in range(300):
        num_bad = 0
        for num in range(1, 1001):
            num_bad += rng.random() < 0.01
            if is_improbable(num_bad, num, 0.01):
                tripped += 1
                break
    assert tripped <= 3
