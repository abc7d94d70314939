"""Admission by predicted wait: what is learned, what is predicted of it, and what that is worth under load."""

from collections.abc import Callable
from random import Random

import pytest

from shoal.batcher.scheduling.admission import CAUTION, MIN_KNOWN, WINDOW, Admission
from tests.batcher.scheduling.overload import MS, Load, simulate


def executed(admission: Admission, durations_ms: list[int], rows: int = 1, instance: int = 0) -> int:
    """One after the other on an instance; when the last has ended."""
    now_ns = 0
    for duration_ms in durations_ms:
        admission.begin(instance, rows, now_ns)
        now_ns += duration_ms * MS
        admission.complete(instance, now_ns)
    return now_ns


def wait_ms(admission: Admission, rows_before: int, now_ns: int) -> float:
    return admission.wait_ns(rows_before, now_ns) / CAUTION / MS


def test_little_is_known_of_few_executions() -> None:
    admission = Admission()
    now_ns = executed(admission, [10] * (MIN_KNOWN - 1))
    assert (admission.wait_ns(1000, now_ns), admission.execution_ns) == (0, 0)
    executed(admission, [10])
    assert wait_ms(admission, 1000, now_ns) == pytest.approx(10_000)
    assert admission.execution_ns == 10 * MS


def test_one_slow_execution_says_nothing_and_a_slower_model_is_believed() -> None:
    admission = Admission()
    now_ns = executed(admission, [10] * WINDOW + [5000])
    assert wait_ms(admission, 1, now_ns) == pytest.approx(10)
    now_ns = executed(admission, [30] * WINDOW)
    assert wait_ms(admission, 1, now_ns) == pytest.approx(30)
    assert admission.execution_ns == 30 * MS


def test_what_waits_is_shared_out_among_the_instances() -> None:
    admission = Admission()
    now_ns = executed(admission, [10] * 8)
    for instance in range(4):
        admission.add_instance(instance)
    assert admission.wait_ns(0, now_ns) == 0  # all are idle
    admission.begin(0, 1, now_ns)
    admission.begin(1, 1, now_ns + 5 * MS)
    admission.begin(2, 1, now_ns + 5 * MS)
    now_ns += 5 * MS
    assert wait_ms(admission, 1, now_ns) == pytest.approx((5 + 10) / 2)  # in 3, idle, and then 0, free in 5 ms
    assert wait_ms(admission, 8, now_ns) == pytest.approx((5 + 10 + 10 + 80) / 4)
    admission.begin(3, 1, now_ns)
    assert wait_ms(admission, 0, now_ns) == pytest.approx(5)  # the first to be free
    admission.remove_instance(0)
    assert wait_ms(admission, 0, now_ns) == pytest.approx(10)


def test_rows_of_a_batch_cost_less_together() -> None:
    admission = Admission()
    now_ns = executed(admission, [16] * 8, rows=8)
    assert wait_ms(admission, 24, now_ns) == pytest.approx(48)


def test_what_lies_ahead_at_an_instance_counts_and_what_takes_too_long_is_about_to_end() -> None:
    admission = Admission()
    now_ns = executed(admission, [10] * 8)
    admission.begin(0, 1, now_ns)
    admission.begin(0, 2, now_ns)
    assert wait_ms(admission, 0, now_ns + 4 * MS) == pytest.approx(26)
    assert wait_ms(admission, 0, now_ns + 500 * MS) == pytest.approx(20)
    admission.complete(0, now_ns + 10 * MS)
    assert wait_ms(admission, 0, now_ns + 15 * MS) == pytest.approx(15)


def test_an_execution_of_unknown_beginning_is_not_learned() -> None:
    admission = Admission()
    for _ in range(WINDOW):
        admission.complete(7, 10 * MS)
    assert admission.execution_ns == 0


def constant(ms: float) -> Callable[[Random, int], float]:
    return lambda _random, _rows: ms * MS


def noisy(ms: float) -> Callable[[Random, int], float]:
    return lambda random, _rows: ms * MS * max(0.2, random.gauss(1, 0.2))


def with_outliers(ms: float) -> Callable[[Random, int], float]:
    return lambda random, _rows: ms * MS * (20 if random.random() < 0.01 else 1)


def affine(ms: float, ms_per_row: float) -> Callable[[Random, int], float]:
    return lambda random, rows: (ms + ms_per_row * rows) * MS * max(0.2, random.gauss(1, 0.1))


@pytest.mark.parametrize("times_capacity", [2, 10])
@pytest.mark.parametrize(
    ("execution_ns", "max_batch_size", "num_instances", "least"),
    [
        (constant(10), 1, 1, 0.97),
        (noisy(10), 1, 1, 0.97),
        (noisy(10), 1, 4, 0.97),
        (with_outliers(5), 1, 1, 0.9),
        (constant(90), 1, 2, 0.93),
        (affine(10, 0.3), 8, 1, 0.95),
        (affine(20, 1), 32, 2, 0.95),
    ],
)
def test_goodput_under_overload(
    execution_ns: Callable[[Random, int], float],
    max_batch_size: int,
    num_instances: int,
    least: float,
    times_capacity: float,
) -> None:
    duration_ns = max(4_000, 12_000 // (max_batch_size * num_instances)) * MS
    load = Load(times_capacity, execution_ns, max_batch_size, num_instances, duration_ns=duration_ns)
    outcome = simulate(load, 1)
    assert outcome.goodput > least, outcome
    assert outcome.refused > 5 * outcome.expired


def test_who_can_be_served_is_not_refused() -> None:
    outcome = simulate(Load(0.7, noisy(10)), 1)
    assert outcome.refused + outcome.expired + outcome.late < 0.005 * outcome.good


def test_a_wrong_estimate_is_corrected_by_what_idle_instances_are_given() -> None:
    """Twenty executions take longer than the deadline; then it is as if nothing had been."""
    calls = iter(range(10**9))

    def execution_ns(_random: Random, _rows: int) -> float:
        return 300 * MS if 1000 <= next(calls) < 1020 else 10 * MS  # a thousand are for the capacity

    outcome = simulate(Load(2, execution_ns, duration_ns=20_000 * MS), 1)
    assert outcome.good > 0.95 * (20_000 - 20 * 300) / 10
