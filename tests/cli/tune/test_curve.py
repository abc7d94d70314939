"""The times of batches that a server has counted, and which settings they rule out."""

from collections.abc import Sequence
from itertools import product

import pytest

from shoal.cli.tune.curve import BatchCurve, as_text, curve_of
from shoal.cli.tune.search import Point, Settings, Trial, cannot_win, climb, search, space_of, trial_of, winner
from tests.cli.tune.test_search import CONFIG, queueing


def test_the_curve_is_read_from_the_last_version_and_rare_sizes_do_not_count() -> None:
    sizes = [
        {"rows": 1, "batches": 40, "ns": 2e6},
        {"rows": 8, "batches": 5, "ns": 4e6},
        {"rows": 3, "batches": 4, "ns": 9},
    ]
    versions = [{"measured": []}, {"measured": sizes}]
    assert curve_of({"versions": versions}) == BatchCurve({1: 2.0, 8: 4.0})
    assert curve_of({"versions": []}) == BatchCurve()


def test_rows_per_second() -> None:
    curve = BatchCurve({2: 4.0, 8: 8.0})
    assert BatchCurve().most_rows_per_s(8) is None
    assert curve.most_rows_per_s(8) == 1000
    assert curve.most_rows_per_s(5) == pytest.approx(5 / 6 * 1000)
    assert curve.most_rows_per_s(1) == 500  # no less time per row than that of two
    assert curve.most_rows_per_s(16) == 2000  # at least as long as a batch of eight
    assert BatchCurve({1: 1.0, 8: 16.0}).most_rows_per_s(8) == 1000  # single rows are best


def trial(settings: Settings, per_s: float, curve: BatchCurve) -> Trial:
    return Trial(settings, (), Point(8, per_s, 1.0), curve=curve)


def test_what_cannot_win() -> None:
    curve = BatchCurve({1: 1.0, 4: 2.0, 16: 3.0})
    known = [trial(Settings(1, 16, 0), 4000.0, curve)]
    assert cannot_win(Settings(1, 2, 0), known)
    assert cannot_win(Settings(1, 16, None), known)
    assert not cannot_win(Settings(1, 16, 500), known)
    assert not cannot_win(Settings(2, 2, 0), known)  # of two instances nothing is known
    assert not cannot_win(Settings(1, 2, 0, threads=1), known)
    assert cannot_win(Settings(1, 2, 0), [trial(Settings(1, 16, 0), 2500.0, curve)], rows=1)
    assert not cannot_win(Settings(1, 2, 0), [trial(Settings(1, 16, 0), 1250.0, curve)], rows=1)
    # A request of four rows is executed as a whole.
    assert not cannot_win(Settings(1, 2, None), [trial(Settings(1, 16, 0), 500.0, curve)], rows=4)
    assert as_text(curve, 2).endswith(
        "1: 1 ms, 4: 2 ms, 16: 3 ms. Settings that cannot win by these times, and were not tried: 2."
    )
    every = BatchCurve(dict.fromkeys(range(1, 54), 1.0))
    assert [each.partition(":")[0] for each in as_text(every, 0).rpartition("settings: ")[2].split(", ")] == [
        "1", "2", "4", "8", "16", "32", "53",
    ]  # fmt: skip
    assert as_text(BatchCurve(), 3) == ""


@pytest.mark.parametrize("goal_ms", [10.0, 50.0, 500.0])
@pytest.mark.parametrize(("cost_ms", "row_ms"), [(1, 0.01), (0.1, 1), (5, 0.5), (0.05, 0.05)])
def test_trials_are_saved_and_the_best_is_found_all_the_same(cost_ms: float, row_ms: float, goal_ms: float) -> None:
    measure = queueing(cost_ms, row_ms, cores=4)
    space, levels = space_of(CONFIG, goal_ms, 4), (1, 2, 4, 8, 16, 32, 64)

    def try_out(settings: Settings) -> Trial:
        points = climb(lambda level: measure(settings, level), goal_ms, 4, 64, lambda: False)
        slow = max(1.0, settings.instances / 4)  # instances beyond the cores
        sizes = range(1, settings.max_batch + 1) if settings.delay_us is not None else [1]
        curve = BatchCurve({rows: (cost_ms + row_ms * rows) * slow for rows in sizes})
        found = trial_of(settings, points, goal_ms)
        return Trial(found.settings, found.points, found.best, curve=curve)

    def trials(*, with_curve: bool) -> Sequence[Trial]:
        start = Settings(1, 32, 300)
        if not with_curve:
            return list(search(start, space, try_out, lambda: False))
        return list(search(start, space, try_out, lambda: False, lambda each, known: not cannot_win(each, known)))

    most = max(
        (
            point.requests_per_s
            for *values, level in product(space.instances, space.max_batch, space.delay_us, levels)
            if (point := measure(Settings(*values), level)).meets(goal_ms)  # type: ignore[arg-type]
        ),
        default=0.0,
    )
    saved = trials(with_curve=True)
    assert winner(saved).score >= 0.9 * most
    assert len(saved) <= len(trials(with_curve=False))
    if cost_ms == 5:
        assert len(saved) < len(trials(with_curve=False))  # small batches of a dear model
