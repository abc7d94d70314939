"""batcher/scheduling/patience.py: what is learned from clients that give up, and a model's goodput with it."""

from collections.abc import Callable
from random import Random

import pytest

from shoal.batcher.scheduling.patience import (
    END_NS,
    FORGOTTEN_NS,
    LEAST,
    LEAST_NS,
    PART,
    SAMPLE_NS,
    TRIAL_NS,
    Patience,
)
from tests.batcher.scheduling.impatient import MS, Crowd, simulate

WAITED_NS = 500 * MS
LIMIT_NS = int(PART * WAITED_NS)


def learned(waited_ns: int = WAITED_NS, *, every_ns: int = SAMPLE_NS, answered_between: int = 0) -> Patience:
    """After as many clients have given up as it takes."""
    patience = Patience()
    for number in range(LEAST):
        patience.gave_up(waited_ns, number * answered_between, number * every_ns)
    return patience


def test_clients_that_give_up_set_a_limit_a_little_below_what_they_waited() -> None:
    assert learned().limit_ns == LIMIT_NS
    assert learned(1).limit_ns == LEAST_NS
    assert Patience().current_ns(END_NS) == 0


def test_one_client_that_drops_many_requests_at_once_sets_none() -> None:
    patience = Patience()
    for number in range(1000):
        patience.gave_up(WAITED_NS, 0, number)
    assert patience.limit_ns == 0


def test_few_that_give_up_among_many_answered_set_none() -> None:
    assert learned(answered_between=10).limit_ns == LIMIT_NS
    assert learned(answered_between=40).limit_ns == 0


def test_clients_that_gave_up_long_ago_do_not_count() -> None:
    assert learned(every_ns=FORGOTTEN_NS).limit_ns == LIMIT_NS
    assert learned(every_ns=FORGOTTEN_NS + 1).limit_ns == 0


def test_half_of_those_that_give_up_waited_longer_than_the_limit() -> None:
    patience = Patience()
    waits_ns = [900, 100, 800, 200, 700, 300, 600, 400]
    for number, each in enumerate(waits_ns):
        patience.gave_up(each * MS, 0, number * SAMPLE_NS)
    assert patience.limit_ns == int(PART * 600 * MS)


def test_the_limit_is_raised_until_it_ends_while_none_gives_up() -> None:
    patience = learned()
    now_ns = LEAST * SAMPLE_NS
    assert patience.current_ns(now_ns) == LIMIT_NS
    limits = [patience.current_ns(now_ns := now_ns + TRIAL_NS) for _ in range(30)]
    assert limits[0] > LIMIT_NS
    rising = limits[: limits.index(0)]
    assert rising == sorted(rising)
    assert max(rising) <= END_NS
    assert not any(limits[len(rising) :])


def test_a_client_that_gives_up_meanwhile_sets_it_back() -> None:
    patience = learned()
    now_ns = LEAST * SAMPLE_NS + TRIAL_NS
    assert patience.current_ns(now_ns) > LIMIT_NS
    patience.gave_up(WAITED_NS, 10**6, now_ns)
    assert patience.current_ns(now_ns + TRIAL_NS - 1) == LIMIT_NS


def all_alike(_: Random) -> int:
    return WAITED_NS


def all_different(random: Random) -> int:
    return int(random.uniform(100, 1000) * MS)


@pytest.mark.parametrize("patience_ns", [all_alike, all_different])
@pytest.mark.parametrize(("times_capacity", "max_batch_size"), [(1.1, 1), (2, 1), (3, 1), (10, 1), (3, 4)])
def test_impatient_clients_get_what_the_model_can_do(
    times_capacity: float, max_batch_size: int, patience_ns: Callable[[Random], int]
) -> None:
    crowd = Crowd(times_capacity, patience_ns, max_batch_size)
    assert simulate(crowd, 1).goodput >= 0.9


def test_without_it_they_get_almost_nothing() -> None:
    assert simulate(Crowd(3, all_alike), 1, learns=False).goodput < 0.2


@pytest.mark.parametrize("crowd", [Crowd(0.9, all_alike), Crowd(3, None), Crowd(3, None, 4, duration_ns=5_000 * MS)])
def test_nothing_changes_below_capacity_or_for_patient_clients(crowd: Crowd) -> None:
    outcome = simulate(crowd, 1)
    assert outcome == simulate(crowd, 1, learns=False)
    assert outcome.limit_ns == 0
