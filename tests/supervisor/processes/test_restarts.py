"""restarts.py: pauses, the breaker, and what closes it again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.supervisor.processes.arbiter import MAX_PAUSE_S
from shoal.supervisor.processes.restarts import Pauses, Restarts, Verdict, backoff_s

#: A death: seconds since the one before, seconds of service before it, whether a batch was completed.
DEATHS = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.booleans()), max_size=40)


def idle_deaths(restarts: Restarts, *times_s: float) -> list[Verdict]:
    """Deaths without any service at these times."""
    return [restarts.died(time_s, 0.0, has_completed=False) for time_s in times_s]


@pytest.mark.parametrize(
    ("num_deaths", "pause_s"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (6, 8.0), (8, 30.0), (1000, 30.0)]
)
def test_pauses_grow_to_a_limit(num_deaths: int, pause_s: float) -> None:
    assert backoff_s(num_deaths) == pause_s


def test_fifth_death_within_a_minute_opens_the_breaker_and_each_later_one_opens_it_again() -> None:
    assert idle_deaths(Restarts(), 0.0, 15.0, 30.0, 45.0, 60.0, 1000.0) == [
        (0.0, False), (0.5, False), (1.0, False), (2.0, False), (30.0, True), (30.0, True),
    ]  # fmt: skip


def test_slow_deaths_pause_longer_and_longer_but_never_open_it() -> None:
    restarts = Restarts()
    verdicts = [restarts.died(each * 16.0, 0.1, has_completed=False) for each in range(20)]
    assert [verdict.pause_s for verdict in verdicts] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0] + [30.0] * 13
    assert not any(verdict.is_failed for verdict in verdicts)


def test_slow_starts_that_all_fail_open_it() -> None:
    """The workers of a large model that finds too little memory die after minutes each, before they are ready."""
    assert idle_deaths(Restarts(), *(each * 100.0 for each in range(6))) == [
        (0.0, False), (0.5, False), (1.0, False), (2.0, False), (30.0, True), (30.0, True),
    ]  # fmt: skip


def test_a_start_that_was_ready_is_no_failed_one() -> None:
    restarts = Restarts()
    idle_deaths(restarts, 0.0, 100.0, 200.0, 300.0)
    assert not restarts.died(400.0, 0.1, has_completed=False).is_failed
    assert not idle_deaths(restarts, 500.0, 600.0)[-1].is_failed


@pytest.mark.parametrize(("served_s", "has_completed"), [(0.1, True), (60.0, False)], ids=["completed", "long service"])
def test_service_closes_a_half_open_breaker(served_s: float, has_completed: bool) -> None:
    restarts = Restarts()
    assert idle_deaths(restarts, 0.0, 1.0, 2.0, 3.0, 4.0)[-1].is_failed
    assert restarts.died(35.0, served_s, has_completed=has_completed) == (0.0, False)
    assert idle_deaths(restarts, 36.0, 37.0, 38.0)[-1].is_failed is False


@given(DEATHS)
def test_a_worker_that_completes_batches_is_always_started_at_once(deaths: list[tuple[float, float, bool]]) -> None:
    restarts, now_s = Restarts(), 0.0
    for after_s, served_s, has_completed in deaths:
        now_s += after_s
        verdict = restarts.died(now_s, served_s, has_completed=has_completed)
        if has_completed:
            assert verdict == (0.0, False)


@given(DEATHS)
def test_it_fails_only_after_five_deaths_in_a_minute_five_failed_starts_or_in_a_half_open_attempt(
    deaths: list[tuple[float, float, bool]],
) -> None:
    restarts, now_s, was_failed = Restarts(), 0.0, False
    fruitless_s = list[float]()  # deaths since a batch was completed or a worker served for a minute
    num_failed_starts = 0  # in a row
    for after_s, served_s, has_completed in deaths:
        now_s += after_s
        if has_completed or served_s >= 60.0:
            fruitless_s, was_failed = [], False
        num_failed_starts = 0 if served_s or has_completed else num_failed_starts + 1
        if not has_completed:
            fruitless_s.append(now_s)
        verdict = restarts.died(now_s, served_s, has_completed=has_completed)
        burst = sum(now_s - death_s <= 60.0 for death_s in fruitless_s) >= 5
        assert verdict.is_failed == (not has_completed and (burst or was_failed or num_failed_starts >= 5))
        assert verdict.pause_s in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
        was_failed = verdict.is_failed


def test_a_process_without_a_breaker_pauses_longer_and_longer_until_it_has_lived_for_a_minute() -> None:
    pauses = Pauses()
    pauses.started(1000.0)
    assert [pauses.ended(1000.0 + each) for each in range(4)] == [0.0, 0.5, 1.0, 2.0]
    pauses.started(1010.0)
    assert pauses.ended(1069.9) == 4.0
    pauses.started(1070.0)
    assert pauses.ended(1130.0) == 0.0


def test_no_pause_of_the_front_ends_is_long_since_no_request_is_answered_meanwhile() -> None:
    pauses = Pauses(MAX_PAUSE_S)
    pauses.started(1000.0)
    assert [pauses.ended(1000.0) for _ in range(6)] == [0.0, 0.5, 1.0, 2.0, 2.0, 2.0]
