"""frontend/reused.py: how often a result is computed."""

import pytest

from shoal.frontend.reused import Reused


@pytest.mark.parametrize(("interval_ms", "expected"), [(2, [1, 1, 2, 2]), (0, [1, 2, 3, 4])])
def test_a_figure_is_told_again_for_an_interval(interval_ms: int, expected: list[int]) -> None:
    figures = iter(range(1, 10))
    reused = Reused(lambda: next(figures), interval_ms)
    assert [reused.get(now_ns) for now_ns in (5_000_000, 6_999_999, 7_000_000, 8_000_000)] == expected
