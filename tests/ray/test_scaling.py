"""shoal/ray/scaling.py: the number of replicas, by generated figures and by whole schedules of load."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ray.scaling import (
    MAX_GROWTH,
    QUEUE_AGE,
    UTILISATION,
    Autoscaling,
    Figures,
    QueueAgePolicy,
    desired_replicas,
    figures_of,
)

GOALS = {"queue_age_s": 0.1, "utilisation": 0.5}
figures = st.builds(Figures, st.floats(0, 60), st.floats(0, 1))
fleets = st.lists(figures, min_size=1, max_size=12)


@given(st.integers(0, 20))
def test_without_figures_nothing_changes(num_replicas: int) -> None:
    assert desired_replicas([], num_replicas, **GOALS) == num_replicas


@given(fleets)
def test_a_fleet_that_makes_clients_wait_never_shrinks_and_grows_in_steps(fleet: list[Figures]) -> None:
    desired = desired_replicas(fleet, len(fleet), **GOALS)
    if max(each.queue_age_s for each in fleet) > GOALS["queue_age_s"] / 2:
        assert desired >= len(fleet)
    by_utilisation = math.ceil(sum(each.utilisation for each in fleet) / GOALS["utilisation"])
    assert desired <= max(by_utilisation, math.ceil(MAX_GROWTH * len(fleet)))


@given(fleets, st.integers(0, 11), st.floats(0, 60), st.floats(0, 1))
def test_more_to_do_never_means_fewer_replicas(fleet: list[Figures], at: int, age_s: float, busy: float) -> None:
    worse = list(fleet)
    at %= len(fleet)
    worse[at] = Figures(max(age_s, fleet[at].queue_age_s), max(busy, fleet[at].utilisation))
    assert desired_replicas(worse, len(fleet), **GOALS) >= desired_replicas(fleet, len(fleet), **GOALS)


@given(st.integers(1, 12))
def test_an_idle_fleet_is_not_needed(num_replicas: int) -> None:
    assert desired_replicas([Figures(0, 0)] * num_replicas, num_replicas, **GOALS) == 0
    busy = [Figures(0, 0)] * (num_replicas - 1) + [Figures(0, 1e-6)]
    assert desired_replicas(busy, num_replicas, **GOALS) == 1


def test_replicas_that_have_not_reported_are_taken_to_be_like_the_others() -> None:
    assert desired_replicas([Figures(0, 0.5)], 4, **GOALS) == 4


@dataclass
class Fleet:
    """Replicas of one request at a time, and one queue before them, on a clock of whole seconds; Serve's delays."""

    goals: Autoscaling
    service_s: float = 0.1
    num_replicas: int = 1
    waiting: float = 0.0
    wanted_since: dict[int, int] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)

    def run(self, seconds: int, rate: float) -> None:
        policy = QueueAgePolicy(self.goals.queue_age_s, self.goals.utilisation)
        for _ in range(seconds):
            capacity = self.num_replicas / self.service_s
            done = min(self.waiting + rate, capacity)
            self.waiting += rate - done
            age_s = self.waiting / capacity if self.waiting > 1e-9 else 0.0
            utilisation = done / capacity if capacity else 0.0
            figures = dict.fromkeys(range(self.num_replicas), age_s)
            context = SimpleNamespace(
                aggregated_metrics={QUEUE_AGE: figures, UTILISATION: dict.fromkeys(figures, utilisation)},
                current_num_replicas=self.num_replicas,
                total_num_requests=0,
            )
            desired, state = policy(context)
            assert state == {}
            self._apply(min(max(desired, self.goals.min_replicas), self.goals.max_replicas))
            self.history.append(self.num_replicas)

    def _apply(self, desired: int) -> None:
        direction = (desired > self.num_replicas) - (desired < self.num_replicas)
        since = self.wanted_since.get(direction, 0)
        self.wanted_since = {direction: since + 1}
        delays = {1: self.goals.upscale_delay_s, -1: self.goals.downscale_delay_s, 0: math.inf}
        if since >= delays[direction]:
            self.num_replicas, self.wanted_since = desired, {}


def test_load_that_comes_and_goes_is_followed_and_the_queue_stays_short() -> None:
    fleet = Fleet(Autoscaling(max_replicas=8, upscale_delay_s=2, downscale_delay_s=20))
    fleet.run(60, rate=5)
    assert set(fleet.history) == {1}
    fleet.run(120, rate=20)  # two replicas' worth of work, at a utilisation of at most 0.7: three
    assert fleet.history[-1] == 3
    assert fleet.waiting == 0
    fleet.run(120, rate=5)
    assert fleet.history[-1] == 1


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 55)), min_size=1, max_size=8), st.floats(0.1, 55))
def test_steady_load_ends_with_the_fewest_replicas_that_the_goals_allow(
    schedule: list[tuple[int, float]], rate: float
) -> None:
    fleet = Fleet(Autoscaling(max_replicas=10, upscale_delay_s=2, downscale_delay_s=5))
    for seconds, some_rate in schedule:
        fleet.run(seconds, some_rate)
    fleet.run(600, rate)
    assert fleet.waiting == pytest.approx(0, abs=1e-6)
    assert fleet.num_replicas == max(1, math.ceil(rate * fleet.service_s / 0.7 - 1e-9))
    assert len(set(fleet.history[-60:])) == 1  # it does not swing


def test_a_request_that_serve_knows_of_keeps_a_replica() -> None:
    policy = QueueAgePolicy(0.1, 0.7)
    nothing = {QUEUE_AGE: {"r": 0.0}, UTILISATION: {"r": 0.0}}
    context = SimpleNamespace(aggregated_metrics=nothing, current_num_replicas=1, total_num_requests=0)
    assert policy(context)[0] == 0
    context.total_num_requests = 1
    assert policy(context)[0] == 1


def test_a_replica_counts_once_it_has_reported_both() -> None:
    assert figures_of({QUEUE_AGE: {"a": 1, "b": 2}, UTILISATION: {"b": 0.5}}) == [Figures(2, 0.5)]
    assert figures_of({}) == []


@pytest.mark.parametrize(
    ("goals", "sentence"),
    [
        ({"min_replicas": 5}, "min_replicas <= max_replicas"),
        ({"min_replicas": 0, "max_replicas": 0}, "max_replicas >= 1"),
        ({"queue_age_s": 0}, "queue_age_s must be above 0"),
        ({"utilisation": 1.5}, "within 0 and 1"),
        ({"upscale_delay_s": -1}, "must not be negative"),
        ({"look_back_s": 0}, "look_back_s must be above 0"),
    ],
)
def test_goals_that_cannot_be_are_errors(goals: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Autoscaling(**goals)  # type: ignore[arg-type]
