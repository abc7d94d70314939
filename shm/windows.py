"""The times that requests took in the last minute, for quantiles: six windows of ten seconds per model version, used in
turn.

Written by the batcher, read by front ends. A window is 8192 bytes:

    offset  size      what
    0       8         number of the window's ten seconds, from the monotonic clock's zero on; 0: the window is empty
    8       5 × 1600  by phase, 400 u32: the number of times in each bin

Bins are 1 µs wide below 32 µs and then a sixteenth of the power of two they lie in, up to 268 s, so a bin represents a
time with an error of at most 3.2 % (below 32 µs: 0.5 µs). A minute takes 48 KiB.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

#: Phases of a request's time; the first is the request's whole time.
PHASES = ("request", "queue", "compute_input", "compute_infer", "compute_output")

PERIOD_NS = 10 * 10**9
NUM_WINDOWS = 6
WINDOW_BYTES = 8192
WINDOWS_BYTES = NUM_WINDOWS * WINDOW_BYTES
_NUM_BINS = 400
_BINS_OFFSET = 8
_BINS_END = _BINS_OFFSET + len(PHASES) * _NUM_BINS * 4
_MAX_US = (1 << 28) - 1
_STARTS = tuple(range(0, len(PHASES) * _NUM_BINS, _NUM_BINS))


def bin_of(ns: int) -> int:
    """Number of the bin for a time in ns."""
    us = ns // 1000
    if us < 32:
        return us
    if us > _MAX_US:
        us = _MAX_US
    shift = us.bit_length() - 5
    return (shift << 4) + (us >> shift)


def middle_us(number: int) -> float:
    """The time in µs that represents a bin."""
    shift = max(0, (number >> 4) - 1)
    return ((number - (shift << 4)) + 0.5) * (1 << shift)


def quantile_us(bins: Sequence[int], quantile: float) -> float:
    """The time in µs that a share `quantile` of all times did not exceed; NaN if there are none."""
    seen = list(accumulate(bins))
    if not seen[-1]:
        return float("nan")
    return middle_us(bisect_left(seen, max(1, quantile * seen[-1])))


class Windows:
    """A row's six windows, writable, in the batcher."""

    def __init__(self, memory: memoryview) -> None:
        self._stamps = [memory[start : start + 8].cast("Q") for start in range(0, WINDOWS_BYTES, WINDOW_BYTES)]
        self._all_bins = [
            memory[start + _BINS_OFFSET : start + _BINS_END].cast("I")
            for start in range(0, WINDOWS_BYTES, WINDOW_BYTES)
        ]
        # Changed every ten seconds, by _begin: the number of the present ten seconds, and the bins of their window.
        self._period = -1
        self._bins = self._all_bins[0]

    def clear(self) -> None:
        """Empty all windows: the row is about to be used for a newly loaded model version."""
        self._period = -1
        for stamp in self._stamps:
            stamp[0] = 0

    def observe(self, now_ns: int, times_ns: tuple[int, ...]) -> None:
        """Count one request's times, in ns and in the order of PHASES; `now_ns` is monotonic."""
        period = now_ns // PERIOD_NS
        if period != self._period:
            self._begin(period)
        bins = self._bins
        for start, ns in zip(_STARTS, times_ns, strict=True):
            bins[start + bin_of(ns)] += 1

    def _begin(self, period: int) -> None:
        """Take over the window of this period, emptied unless a dead batcher has begun it for the same period."""
        number = period % NUM_WINDOWS
        self._period, self._bins = period, self._all_bins[number]
        stamp = self._stamps[number]
        if stamp[0] != period:
            stamp[0] = 0  # publishes: readers ignore this window
            self._bins[:] = memoryview(bytes(self._bins.nbytes)).cast("I")
            stamp[0] = period  # publishes: the window, which is empty


class WindowsView:
    """A row's six windows, read-only, in a front end."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def read(self, now_ns: int) -> dict[str, list[int]]:
        """Per phase, a copy of the counts of all 400 bins for the last 50 to 60 s before `now_ns` (monotonic)."""
        period = now_ns // PERIOD_NS
        lately = []
        for start in range(0, WINDOWS_BYTES, WINDOW_BYTES):
            (stamp,) = self._memory[start : start + 8].cast("Q")
            if stamp and period - NUM_WINDOWS < stamp <= period:
                lately.append(self._memory[start + _BINS_OFFSET : start + _BINS_END].cast("I").tolist())
        sums = [sum(column) for column in zip(*lately, strict=True)] or [0] * (len(PHASES) * _NUM_BINS)
        return {phase: sums[start : start + _NUM_BINS] for phase, start in zip(PHASES, _STARTS, strict=True)}
