"""latency_curve.py: what is learned of how long batches take."""

import statistics
from collections.abc import Callable
from random import Random

import pytest

from shoal.batcher.scheduling.latency_curve import LatencyCurve, cell_of, fastest, fit, median, rising, rows_of

MS = 1_000_000


def learned(curve_ms: Callable[[int], float], sizes: list[int], max_rows: int = 32, noise: float = 0.0) -> LatencyCurve:
    random = Random(5)
    curve = LatencyCurve(max_rows)
    for rows in sizes:
        curve.learn(rows, int(curve_ms(rows) * MS * (1 + random.uniform(-noise, noise))))
    return curve


def test_a_cell_for_each_size_and_then_32_to_an_octave() -> None:
    assert [cell_of(rows) for rows in (0, 1, 2, 62, 63, 64, 65, 66, 127, 128, 131, 132)] == [
        0, 1, 2, 62, 63, 64, 64, 65, 95, 96, 96, 97,
    ]  # fmt: skip
    assert all(rows_of(cell_of(rows)) <= rows < rows_of(cell_of(rows) + 1) for rows in range(1, 5000))


def test_nothing_is_known_at_first_and_one_row_is_tried() -> None:
    curve = LatencyCurve(32)
    assert curve.ns(8) == 0
    assert curve.best_rows(20) == 1
    assert curve.points() == []


def test_more_is_tried_step_by_step() -> None:
    tried = []
    curve = LatencyCurve(100)
    for _ in range(5):
        tried.append(curve.best_rows(100))
        curve.learn(tried[-1], 5 * MS)
    assert tried == [1, 4, 16, 61, 96]  # within 5 % of what was asked is near enough


def test_the_middle_of_the_last_times_counts() -> None:
    curve = learned(lambda _: 5, [1] * 20)
    curve.learn(1, 500 * MS)
    for _ in range(20):
        curve.learn(1, 5 * MS)
    assert curve.ns(1) == pytest.approx(5 * MS)


def test_the_median_is_the_standard_library_s() -> None:
    for num_values in range(1, 12):
        values = [Random(num_values).random() for _ in range(num_values)]
        assert median(values) == statistics.median(values)


def test_between_sizes_that_are_known_the_time_is_between_theirs() -> None:
    curve = learned(lambda rows: 4 + rows / 4, [1, 4, 16, 32] * 10)
    assert curve.ns(10) == pytest.approx(6.5 * MS, rel=0.02)
    assert curve.ns(20) == pytest.approx(9 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("curve_ms", "rows", "best"),
    [
        (lambda _rows: 5, 32, 31),
        (lambda rows: 4 + rows / 4, 32, 28),  # 5 % slower per row than 32, and sooner done
        (lambda rows: rows, 32, 1),  # batching does not pay
        (lambda rows: rows**1.1, 32, 1),
        (lambda rows: 4 * -(-rows // 8), 7, 7),
        (lambda rows: 4 * -(-rows // 8), 15, 8),  # a tile more would cost as much as the first
    ],
    ids=["flat", "affine", "linear", "worse", "below a step", "beyond a step"],
)
def test_as_many_rows_as_pay(curve_ms: Callable[[int], float], rows: int, best: int) -> None:
    curve = learned(curve_ms, list(range(1, 33)) * 12, noise=0.02)
    assert curve.best_rows(rows) == best


def test_a_slower_machine_is_slower_for_all_sizes_and_the_best_one_stays_the_best() -> None:
    curve = learned(lambda rows: 20 + rows, list(range(1, 33)) * 6)
    best = curve.best_rows(32)
    for _ in range(40):
        curve.learn(4, 48 * MS)
    assert curve.ns(4) == pytest.approx(48 * MS, rel=0.02)
    assert curve.ns(32) == pytest.approx(104 * MS, rel=0.02)
    assert curve.best_rows(32) == best
    for _ in range(3):
        curve.learn(32, 52 * MS)
    assert curve.ns(4) == pytest.approx(24 * MS, rel=0.02)


def test_a_moment_is_no_pace() -> None:
    curve = learned(lambda rows: 20 + rows, list(range(1, 33)) * 6)
    for _ in range(2):
        curve.learn(4, 200 * MS)
    assert curve.ns(32) == pytest.approx(52 * MS, rel=0.02)


def test_a_size_that_was_never_tried_is_tried_once() -> None:
    curve = learned(lambda rows: 4 * -(-rows // 8), [1, 4, 6, 16] * 10)
    assert curve.best_rows(8) == 8
    assert curve.best_rows(15) == 15
    curve.learn(9, 8 * MS)
    for _ in range(16):
        curve.learn(8, 4 * MS)
    assert curve.best_rows(15) == 8


def test_what_was_not_executed_for_long_is_forgotten() -> None:
    curve = learned(lambda rows: 5, [1, 8] * 10)
    assert curve.most_rows == 32
    for _ in range(6000):
        curve.learn(1, 5 * MS)
    assert [rows for rows, _, _ in curve.points()] == [1]
    assert curve.most_rows == 4


def test_no_time_at_all_is_a_time() -> None:
    curve = learned(lambda rows: 0, [1, 2, 3, 4] * 10)
    assert curve.best_rows(4) == 4


def test_a_request_larger_than_a_batch_teaches_nothing() -> None:
    curve = learned(lambda rows: 5, [40])
    assert curve.points() == []


def test_the_line() -> None:
    assert fit([(4, 8.0, 1.0)]) == (4.0, 1.0)
    assert fit([(1, 5.0, 1.0), (2, 6.0, 1.0), (8, 12.0, 1.0)]) == pytest.approx((4.0, 1.0))
    assert fit([(1, 9.0, 1.0), (8, 3.0, 1.0)])[1] == 0.0
    intercept, slope = fit([(2, 1.0, 1.0), (8, 16.0, 1.0)])
    assert intercept == 0.0
    assert slope > 0


def test_no_size_is_faster_than_a_smaller_one() -> None:
    assert rising([1.0, 4.0, 2.0, 6.0], [1.0, 1.0, 1.0, 1.0]) == [1.0, 3.0, 3.0, 6.0]
    assert rising([4.0, 1.0], [3.0, 1.0]) == [3.25, 3.25]


def test_the_smallest_that_is_nearly_fastest() -> None:
    assert fastest([0.0, 1.0, 1.5, 1.52], 0.05) == [0, 1, 2, 2]
    assert fastest([0.0, 1.0, 1.5, 1.52], 0.0) == [0, 1, 2, 3]
