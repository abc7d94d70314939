"""batcher/scheduling/patience.py: what is learned from clients that give up, and a model's goodput with it."""

from collections.abc import Callable
from random import Random

import pytest

from shoal.batcher.scheduling.patience import (
    ANSWERS,
    END_NS,
    LONG_NS,
    PART,
    SAMPLE_NS,
    TRIAL_NS,
    USELESS,
    USELESS_AGAIN,
    Patience,
)
from tests.batcher.scheduling.impatient import MS, PATIENT_NS, Crowd, simulate

WAITED_NS = 500 * MS
LIMIT_NS = int(PART * WAITED_NS)
#: After that many samples, one for each useless answer, there is a limit.
ENOUGH = USELESS + 1


def learned(
    waited_ns: int = WAITED_NS, *, every_ns: int = SAMPLE_NS, answers: int = 1, useless: int = 1, number: int = ENOUGH
) -> Patience:
    """After a number of clients have given up; between two of them so many requests are answered, and so many of the
    answers are useless."""
    patience = Patience()
    for each in range(number):
        patience.gave_up(waited_ns, each * answers, each * every_ns)
        for _ in range(useless):
            patience.answer_became_useless()
    return patience


def test_clients_that_give_up_set_a_limit_a_little_below_what_they_waited() -> None:
    assert learned().limit_ns == LIMIT_NS
    assert learned(LONG_NS).limit_ns == LONG_NS
    assert learned(number=ENOUGH - 1).limit_ns == 0
    assert Patience().current_ns(1, END_NS) == 0


def test_clients_that_have_not_waited_long_set_none() -> None:
    assert learned(LONG_NS - 1, number=1000).limit_ns == 0


def test_one_client_that_drops_many_requests_at_once_sets_none() -> None:
    assert learned(every_ns=1, number=1000).limit_ns == 0


def test_queued_clients_that_hang_up_set_none_while_most_answers_reach_others() -> None:
    assert learned(answers=0, useless=0, number=1000).limit_ns == 0
    assert learned(answers=1, useless=0, number=1000).limit_ns == 0
    assert learned(answers=ANSWERS // USELESS + 1, number=1000).limit_ns == 0
    assert learned(answers=1000, useless=USELESS, number=1000).limit_ns == 0
    assert learned(answers=ANSWERS // USELESS).limit_ns == LIMIT_NS


def test_a_queue_that_may_have_been_empty_meanwhile_says_nothing() -> None:
    assert learned(every_ns=WAITED_NS).limit_ns == LIMIT_NS
    assert learned(every_ns=WAITED_NS + 1, number=1000).limit_ns == 0


def test_an_empty_queue_forgets_all() -> None:
    patience = learned()
    now_ns = ENOUGH * SAMPLE_NS
    assert patience.current_ns(1, now_ns) == LIMIT_NS
    assert patience.current_ns(0, now_ns) == 0
    assert patience.current_ns(1, now_ns) == 0
    patience.gave_up(WAITED_NS, 100, now_ns)
    assert patience.limit_ns == 0


def test_half_of_those_that_give_up_waited_longer_than_the_limit() -> None:
    patience = Patience()
    for number in range(ENOUGH):
        patience.gave_up((300 + 100 * (number % 8)) * MS, number, number * SAMPLE_NS)
        patience.answer_became_useless()
    assert patience.limit_ns == int(PART * 700 * MS)


def test_the_limit_is_raised_until_it_ends_while_it_is_not_found_again() -> None:
    patience = learned()
    now_ns = ENOUGH * SAMPLE_NS
    assert patience.current_ns(1, now_ns) == LIMIT_NS
    limits = [patience.current_ns(1, now_ns := now_ns + TRIAL_NS) for _ in range(30)]
    assert limits[0] > LIMIT_NS
    rising = limits[: limits.index(0)]
    assert rising == sorted(rising)
    assert max(rising) <= END_NS
    assert not any(limits[len(rising) :])


def test_a_trial_ends_with_fewer_useless_answers_than_it_took_to_find_the_limit() -> None:
    patience = learned()
    now_ns = ENOUGH * SAMPLE_NS + TRIAL_NS
    assert patience.current_ns(1, now_ns) > LIMIT_NS
    for number in range(USELESS_AGAIN + 1):
        patience.gave_up(WAITED_NS, ENOUGH + number * (ANSWERS // USELESS + 1), now_ns := now_ns + SAMPLE_NS)
        patience.answer_became_useless()
    assert USELESS_AGAIN < USELESS
    assert patience.current_ns(1, now_ns + TRIAL_NS - 1) == LIMIT_NS


def all_alike(_: Random) -> int:
    return WAITED_NS


def all_different(random: Random) -> int:
    return int(random.uniform(100, 1000) * MS)


def nearly_alike(random: Random) -> int:
    return int(random.gauss(500, 25) * MS)


@pytest.mark.parametrize(
    ("times_capacity", "max_batch_size", "patience_ns"),
    [
        (1.5, 1, all_alike),
        (2, 1, all_alike),
        (3, 1, all_alike),
        (10, 1, all_alike),
        (3, 4, all_alike),
        (10, 1, nearly_alike),
    ],
)
def test_impatient_clients_get_what_the_model_can_do(
    times_capacity: float, max_batch_size: int, patience_ns: Callable[[Random], int]
) -> None:
    crowd = Crowd(times_capacity, patience_ns, max_batch_size)
    assert simulate(crowd, 1).goodput >= 0.9


def test_without_it_they_get_almost_nothing() -> None:
    assert simulate(Crowd(3, all_alike), 1, learns=False).goodput < 0.2


@pytest.mark.parametrize(
    "crowd",
    [
        Crowd(0.9, all_alike),
        Crowd(3, None),
        Crowd(3, None, 4, duration_ns=5_000 * MS),
        Crowd(3, all_different),
        Crowd(10, all_different),
    ],
)
def test_nothing_changes_where_most_answers_reach_their_clients(crowd: Crowd) -> None:
    outcome = simulate(crowd, 1)
    assert outcome == simulate(crowd, 1, learns=False)
    assert outcome.limited == 0


@pytest.mark.parametrize("hangs_up_ms", [1, 50, 249, 260, 500, 1500])
@pytest.mark.parametrize(("patient", "hostile"), [(0.3, 0.3), (0.7, 0.7), (0.7, 5), (0.9, 3), (1.3, 1), (1.3, 4)])
def test_clients_that_wait_are_not_refused_beside_one_that_hangs_up(
    hangs_up_ms: int, patient: float, hostile: float
) -> None:
    def patience_ns(random: Random) -> int:
        return PATIENT_NS if random.random() * (patient + hostile) < patient else hangs_up_ms * MS

    outcome = simulate(Crowd(patient + hostile, patience_ns, duration_ns=4_000 * MS), 1)
    assert outcome.limited == 0
    assert outcome.patient_refused == 0
    assert outcome.good > 50


@pytest.mark.parametrize("waited_ns", [1, 50 * MS, WAITED_NS])
def test_a_burst_after_hang_ups_is_not_refused(waited_ns: int) -> None:
    patience = learned(waited_ns)
    now_ns = ENOUGH * SAMPLE_NS
    assert [patience.current_ns(num_queued, now_ns) for num_queued in range(200)] == [0] * 200
