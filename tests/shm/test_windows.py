"""shm/windows.py: what is seen of the last minute, and how exactly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shm.windows import PHASES, WINDOWS_BYTES, Windows, WindowsView, bin_of, middle_us, quantile_us

S = 10**9


class Pair:
    """Both sides of one row's windows."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(WINDOWS_BYTES))
        self.view = WindowsView(self.memory.toreadonly())

    def counts(self, now_s: float) -> list[int]:
        return [sum(bins) for bins in self.view.read(int(now_s * S)).values()]


@pytest.mark.parametrize(
    ("ns", "number"),
    [(0, 0), (999, 0), (1_000, 1), (31_999, 31), (32_000, 32), (33_999, 32), (34_000, 33), (63_999, 47), (64_000, 48),
     (67_999, 48), (68_000, 49), (10**12, 399), (2**64 - 1, 399)],
)  # fmt: skip
def test_bins_are_a_microsecond_wide_and_then_a_sixteenth_of_a_power_of_two(ns: int, number: int) -> None:
    assert bin_of(ns) == number


@given(st.integers(0, (1 << 28) * 1000 - 1))
def test_a_bin_tells_its_times_within_half_a_microsecond_or_a_thirtieth(ns: int) -> None:
    assert math.isclose(middle_us(bin_of(ns)), ns / 1000, rel_tol=1 / 31, abs_tol=0.5)


def test_quantiles_are_of_what_was_seen() -> None:
    bins = [0] * 400
    assert math.isnan(quantile_us(bins, 0.5))
    for us in range(1, 101):
        bins[bin_of(us * 1000)] += 1
    for quantile in (0.01, 0.25, 0.5, 0.9, 0.99, 1.0):
        assert math.isclose(quantile_us(bins, quantile), quantile * 100, rel_tol=1 / 31, abs_tol=0.5)
    assert quantile_us(bins, 0.0) == 1.5


def test_each_phase_has_bins_of_its_own() -> None:
    pair = Pair()
    Windows(pair.memory).observe(25 * S, (5_000, 4_000, 3_000, 2_000, 1_000))
    read = pair.view.read(25 * S)
    assert [bins.index(1) for bins in read.values()] == [5, 4, 3, 2, 1]
    assert tuple(read) == PHASES == ("request", "queue", "compute_input", "compute_infer", "compute_output")
    assert int.from_bytes(pair.memory[2 * 8192 : 2 * 8192 + 8], "little") == 2
    assert int.from_bytes(pair.memory[2 * 8192 + 8 + 5 * 4 :][:4], "little") == 1


def test_what_is_older_than_a_minute_is_forgotten_without_being_touched() -> None:
    pair = Pair()
    windows = Windows(pair.memory)
    for second in range(1000, 1060):
        windows.observe(second * S, (1_000,) * 5)
    assert pair.counts(1059.9) == [60] * 5
    assert pair.counts(1060) == [50] * 5
    assert pair.counts(1109.9) == [10] * 5
    assert pair.counts(1110) == [0] * 5
    windows.observe(1119 * S, (1_000,) * 5)
    assert pair.counts(1119) == [1] * 5


def test_who_takes_a_dead_batchers_place_goes_on_with_its_window() -> None:
    pair = Pair()
    Windows(pair.memory).observe(101 * S, (1_000,) * 5)
    Windows(pair.memory).observe(109 * S, (1_000,) * 5)
    assert pair.counts(109) == [2] * 5
    Windows(pair.memory).clear()
    assert pair.counts(109) == [0] * 5


def test_a_window_whose_turn_comes_again_is_empty() -> None:
    pair = Pair()
    windows = Windows(pair.memory)
    windows.observe(5 * S, (1_000,) * 5)
    windows.observe(65 * S, (2_000,) * 5)
    assert [bins.index(1) for bins in pair.view.read(65 * S).values()] == [2] * 5
    assert pair.counts(65) == [1] * 5
