"""The autoscaler: examples of each rule, and what holds for every load and every clock."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.supervisor.models.autoscale import Autoscaler, Load

S = 1_000_000_000
LOOK = S // 2
QUEUE_AGE = S // 20
BUSY = Load(1, 0.9, 0)
IDLE = Load(4, 0.1, 0)


def looks(scaler: Autoscaler, load: Load, seconds: float, start_s: float = 0) -> list[int]:
    """What is wanted at each of two looks a second."""
    first = int(start_s * S)
    return [scaler.observe(first + number * LOOK, load) for number in range(int(seconds * 2) + 1)]


@pytest.mark.parametrize("load", [BUSY, Load(1, 0.1, 2 * QUEUE_AGE)], ids=["busy", "waiting"])
def test_more_are_wanted_once_it_has_lasted_for_a_second(load: Load) -> None:
    # The first look has nothing to compare with, the second begins the second.
    assert looks(Autoscaler((1, 8), QUEUE_AGE, 1), load, 2) == [1, 1, 1, 2, 2]


def test_one_quiet_look_begins_the_second_anew() -> None:
    scaler = Autoscaler((1, 8), QUEUE_AGE, 1)
    loads = [BUSY, BUSY, Load(1, 0.8, QUEUE_AGE), BUSY, BUSY, BUSY]
    assert [scaler.observe(number * LOOK, load) for number, load in enumerate(loads)] == [1, 1, 1, 1, 1, 2]


def test_half_as_many_again_from_those_that_serve_and_once_in_five_seconds() -> None:
    scaler = Autoscaler((1, 64), QUEUE_AGE, 10)
    assert looks(scaler, Load(10, 1.0, S), 12)[-1] == 15  # on their way: not asked for twice
    wanted = looks(scaler, Load(15, 1.0, S), 12, start_s=12.5)
    assert sorted(set(wanted)) == [15, 22]
    assert looks(scaler, Load(22, 1.0, S), 1, start_s=25)[-1] == 22  # those that have just come get their second
    assert looks(scaler, Load(22, 1.0, S), 4, start_s=26.5)[-1] == 33


def test_a_raise_follows_the_last_one_by_five_seconds() -> None:
    scaler = Autoscaler((1, 64), QUEUE_AGE, 1)
    num_instances, raised = 1, []
    for number in range(40):
        wanted = scaler.observe(number * LOOK, Load(num_instances, 1.0, S))
        if wanted > num_instances:
            raised.append((number * LOOK / S, wanted))
            num_instances = wanted  # they come at once
    assert raised == [(1.5, 2), (6.5, 3), (11.5, 4), (16.5, 6)]


def test_one_less_after_thirty_seconds_in_which_it_would_have_done() -> None:
    scaler = Autoscaler((1, 8), QUEUE_AGE, 4)
    wanted = looks(scaler, IDLE, 60)
    assert (wanted.index(3), wanted[-1]) == (61, 3)
    scaler = Autoscaler((1, 8), QUEUE_AGE, 4)
    assert looks(scaler, Load(4, 0.375, 0), 120)[-1] == 4  # three would be busy for half of their time


def test_an_instance_that_dies_or_never_comes_lowers_nothing() -> None:
    assert looks(Autoscaler((1, 8), QUEUE_AGE, 2), Load(1, 0.0, 0), 100)[-1] == 2
    assert looks(Autoscaler((1, 8), QUEUE_AGE, 1), Load(0, 0.0, 10 * S), 100)[-1] == 1


def test_a_scaling_by_hand_is_followed() -> None:
    scaler = Autoscaler((1, 8), QUEUE_AGE, 1)
    assert looks(scaler, Load(1, 0.6, 0), 2)[-1] == 1
    scaler.wanted = 5
    assert looks(scaler, Load(5, 0.6, 0), 60, start_s=2.5)[-1] == 5


LOAD = st.builds(
    Load,
    num_instances=st.integers(0, 9),
    busy_share=st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.8, 0.81, 1.0]),
    queue_age_ns=st.sampled_from([0, QUEUE_AGE, QUEUE_AGE + 1, 10 * S]),
)
PAUSE = st.sampled_from([LOOK, LOOK, LOOK, S, 4 * S, 5 * S, 6 * S])
#: Runs of equal looks: what does not last decides nothing, so single ones would find little.
RUN = st.tuples(LOAD, PAUSE, st.integers(1, 70))
BOUNDS = st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def replay(scaler: Autoscaler, runs: list[tuple[Load, int, int]]) -> tuple[int, list[int]]:
    """The time at the end, and all that was wanted."""
    now_ns, wanted = 0, []
    for load, pause_ns, count in runs:
        for _ in range(count):
            now_ns += pause_ns
            wanted.append(scaler.observe(now_ns, load))
    return now_ns, wanted


@given(BOUNDS, st.integers(0, 12), st.lists(RUN, max_size=8))
def test_what_is_wanted_is_within_the_bounds(
    bounds: tuple[int, int], first: int, runs: list[tuple[Load, int, int]]
) -> None:
    _, wanted = replay(Autoscaler(bounds, QUEUE_AGE, first), runs)
    assert all(bounds[0] <= each <= bounds[1] for each in wanted)


@given(BOUNDS, st.integers(1, 9), st.lists(RUN, max_size=6), LOAD, PAUSE, st.floats(0, 1), st.integers(0, S))
def test_after_the_same_history_more_load_never_wants_fewer(
    bounds: tuple[int, int],
    first: int,
    runs: list[tuple[Load, int, int]],
    load: Load,
    pause_ns: int,
    more_busy: float,
    older_ns: int,
) -> None:
    heavier = Load(load.num_instances, min(1.0, load.busy_share + more_busy), load.queue_age_ns + older_ns)
    outcomes = []
    for last in (load, heavier):
        scaler = Autoscaler(bounds, QUEUE_AGE, first)
        now_ns, _ = replay(scaler, runs)
        outcomes.append(scaler.observe(now_ns + pause_ns, last))
    assert outcomes[0] <= outcomes[1]


@given(BOUNDS, st.integers(1, 9), st.lists(RUN, max_size=6), LOAD, st.integers(5 * S + 1, 3600 * S))
def test_a_gap_decides_nothing_and_what_lasts_begins_anew(
    bounds: tuple[int, int], first: int, runs: list[tuple[Load, int, int]], load: Load, gap_ns: int
) -> None:
    scaler = Autoscaler(bounds, QUEUE_AGE, first)
    now_ns, _ = replay(scaler, runs)
    before = scaler.wanted
    assert scaler.observe(now_ns + gap_ns, load) == before
    assert scaler.observe(now_ns + gap_ns + LOOK, load) == before


@dataclass
class Plant:
    """A model under constant load: `work` is how many instances would be busy all the time with it."""

    scaler: Autoscaler
    work: float
    lag: int  # looks that a new instance takes to come, or an old one to go
    backlog: float  # instance-seconds that wait
    num_instances: int = 1
    on_their_way: list[int] = field(default_factory=list)
    history: list[int] = field(default_factory=list)

    def run(self, num_looks: int) -> None:
        for number in range(num_looks):
            wait = self.backlog + self.work / 2
            done = min(wait, self.num_instances / 2)
            self.backlog = wait - done
            age_ns = int(self.backlog / max(self.work, 0.1) * S)
            load = Load(self.num_instances, min(1.0, done * 2 / self.num_instances), age_ns)
            self.on_their_way.append(self.scaler.observe(number * LOOK, load))
            if len(self.on_their_way) > self.lag:
                self.num_instances = self.on_their_way.pop(0)
            self.history.append(self.scaler.wanted)

    @property
    def directions(self) -> list[int]:
        """+1 and -1 for each change of what is wanted."""
        pairs = zip(self.history, self.history[1:], strict=False)
        return [1 if after > before else -1 for before, after in pairs if after != before]


@settings(max_examples=40)
@given(st.floats(0, 7.9), st.integers(1, 8), st.integers(0, 20), st.sampled_from([0.0, 1.0, 30.0]))
def test_constant_load_comes_to_rest_and_never_flaps(work: float, first: int, lag: int, backlog: float) -> None:
    plant = Plant(Autoscaler((1, 12), QUEUE_AGE, first), work, lag, backlog, first)
    plant.run(1300)
    # Up while there is too much to do, or too much has piled up; then down, if that was more than needed; then rest.
    assert plant.directions == sorted(plant.directions, reverse=True)
    assert len(set(plant.history[-300:])) == 1
    rest = plant.history[-1]
    assert work <= 0.8 * rest + 1e-6
    assert rest == 1 or work >= 0.5 * (rest - 1) - 1e-6


@settings(max_examples=40)
@given(st.floats(0, 7.9), st.floats(0, 2), st.integers(1, 8))
def test_more_constant_load_comes_to_rest_with_no_fewer(work: float, more: float, first: int) -> None:
    rests = []
    for each in (work, min(work + more, 9.0)):
        plant = Plant(Autoscaler((1, 12), QUEUE_AGE, first), each, 2, 0.0, first)
        plant.run(1300)
        rests.append(plant.history[-1])
    assert rests[0] <= rests[1]
