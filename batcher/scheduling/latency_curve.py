"""A model's execution time by the number of rows in a batch, learned from executed batches.

Batch sizes are told apart one by one up to 63 rows, then 32 to each doubling: the times of compiled models rise in
steps, at multiples of a tile, which a straight line does not describe. Each such size, a cell, has its last few times;
their median, which a single outlier does not move, is its estimate. Sizes between measured cells are interpolated;
sizes beyond them are estimated by a line fitted through all. A size that is not executed for long is forgotten: so a
size with unlucky times is tried again, and a changed model is learned again.

The pace is a factor for the whole curve, which follows the machine: if other programs slow the machine down, all sizes
take longer. Without the pace, a size measured in a slow moment would look bad beside a size measured in a fast one.
Pure.
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import pairwise

#: Times that a cell keeps (ours): five outliers in a row do not move the median.
MAX_SAMPLES = 11
#: Batches whose median determines the pace (ours): three of them change it.
MAX_PACES = 5
#: Number of a cell's times from which on its batches count for the pace (ours).
_SEEN = 3
#: Batches after which the table is computed again; fewer while few are known. (Measured: to compute the table takes 60
#: us for 64 cells.)
REFRESH_BATCHES = 16
#: The share of a cell's weight that each new table leaves: half after 550 batches.
_FADE = 0.98
#: The weight of the fitted line in a cell's estimate, in which each of the cell's times weighs 1 (ours).
_LINE_WEIGHT = 0.25
#: A cell of less weight counts as never seen.
_FORGOTTEN = 0.05
#: Number of a cell's times from which on the size is known: a few slow executions in a busy moment must not end the use
#: of a good size (measured with smaller numbers: 32 rows were not used again after one execution of 77 ms instead of
#: 61; with 3, not after the first second of a slow phase).
_KNOWN = 6
#: The factor by which the rows of a batch may exceed the largest known size (ours): the first batches have up to 1, 4,
#: 16, 64 rows.
_STRIDE = 4
#: The share by which a larger batch must be faster per row than a smaller one, or the smaller one is executed (ours):
#: batching that does not pay only makes the first of a batch wait for the last.
PAYS = 0.05


def cell_of(rows: int) -> int:
    """The cell that a number of rows falls into."""
    shift = max(0, rows.bit_length() - 6)
    return (shift << 5) + (rows >> shift)


def rows_of(cell: int) -> int:
    """The fewest rows of a cell."""
    return cell if cell < 64 else ((cell & 31) + 32) << ((cell >> 5) - 1)


def median(values: Collection[float]) -> float:
    """The middle value, or the mean of the two middle ones. (To import Python's `statistics` would take the batcher 9
    ms.)"""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class LatencyCurve:
    """The execution times of a model by batch size: `learn` adds a measurement, all other methods query. Times are
    in ns."""

    __slots__ = (
        "_best", "_fastest", "_intercept_ns", "_max_rows", "_num_learned", "_pace", "_paces", "_refresh_at", "_samples",
        "_slope_ns", "_table", "_weights", "most_rows",
    )  # fmt: skip

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        # Changed by learn alone. By cell: the last times, their weight, the estimate, and the smallest cell up to this
        # one that is nearly as fast per row as the fastest: within PAYS of it (`_best`), and within a fifth of PAYS
        # (`_fastest`).
        self._samples: dict[int, deque[float]] = {}
        self._weights = [0.0] * (cell_of(max_rows) + 1)
        self._table: list[float] = []
        self._best: list[int] = []
        self._fastest: list[int] = []
        self._intercept_ns = self._slope_ns = 0.0
        #: The factor by which batches take longer now than the table says, and the factors of the last batches.
        self._pace = 1.0
        self._paces: deque[float] = deque(maxlen=MAX_PACES)
        #: The most rows that a batch may have: four times as many as the largest known size.
        self.most_rows = 1
        self._num_learned = 0
        self._refresh_at = 1

    def learn(self, rows: int, took_ns: int) -> None:
        """Learn that a batch of `rows` rows took `took_ns`."""
        if rows > self._max_rows:
            return  # a single request with more rows than a batch may have
        cell = cell_of(rows)
        if self._weights[cell] < _FORGOTTEN:
            self._samples[cell] = deque(maxlen=MAX_SAMPLES)
        samples = self._samples[cell]
        if len(samples) >= _SEEN:
            self._paces.append(max(1, took_ns) / max(1.0, median(samples)))
            self._pace = median(self._paces)
        samples.append(took_ns / self._pace)
        self._weights[cell] = min(MAX_SAMPLES, self._weights[cell] + 1)
        self._num_learned += 1
        if self._num_learned >= self._refresh_at or _STRIDE * rows > self.most_rows:
            self._refresh()
            self._refresh_at = self._num_learned + min(self._num_learned, REFRESH_BATCHES)

    def ns(self, rows: int) -> float:
        """The time in ns that a batch of `rows` rows should take; 0 while no size is known."""
        cell = cell_of(rows)
        took_ns = self._table[cell] if cell < len(self._table) else self._intercept_ns + self._slope_ns * rows
        return self._pace * took_ns

    def best_rows(self, rows: int, *, any_gain: bool = False) -> int:
        """How many of `rows` should be executed at once: as many as pay, and no more than `most_rows`.

        `any_gain`: more rows wait than fit into one batch, so any gain counts that is more than noise.
        """
        rows = min(rows, self.most_rows)
        cell = cell_of(rows)
        if cell >= len(self._best):
            return rows
        best = (self._fastest if any_gain else self._best)[cell]
        return rows if best == cell else rows_of(best)

    def points(self) -> list[tuple[int, int, int]]:
        """(rows, estimated ns, number of measured times) of each size that is remembered."""
        return [
            (rows_of(cell), int(self._table[cell] * self._pace), len(samples))
            for cell, samples in sorted(self._samples.items())
            if self._weights[cell] >= _FORGOTTEN
        ]

    def _refresh(self) -> None:
        weights = self._weights = [weight * _FADE for weight in self._weights]
        seen = [cell for cell, weight in enumerate(weights) if weight >= _FORGOTTEN]
        times = {cell: float(median(self._samples[cell])) for cell in seen}
        self._intercept_ns, self._slope_ns = fit([(rows_of(cell), times[cell], weights[cell]) for cell in seen])
        self.most_rows = min(_STRIDE * rows_of(seen[-1]), self._max_rows)
        table = [self._intercept_ns + self._slope_ns * rows_of(cell) for cell in range(cell_of(self.most_rows) + 1)]
        own = [
            (times[cell] * weights[cell] + table[cell] * _LINE_WEIGHT) / (weights[cell] + _LINE_WEIGHT) for cell in seen
        ]
        never_falling = rising(own, [weights[cell] for cell in seen])
        for cell, above, ns, above_ns in zip(seen, seen[1:], never_falling, never_falling[1:], strict=False):
            for between in range(cell, above):
                table[between] = ns + (above_ns - ns) * (between - cell) / (above - cell)
        table[seen[-1]] = never_falling[-1]
        self._table = table
        rates = [rows_of(cell) / max(1.0, took_ns) for cell, took_ns in enumerate(self._hoped(seen))]
        self._best, self._fastest = fastest(rates, PAYS), fastest(rates, PAYS / 5)

    def _hoped(self, seen: Sequence[int]) -> list[float]:
        """An optimistic estimate (ns) for each size, so that unknown sizes are tried, and steps of the curve are found.

        If batching pays at all, an unseen size is assumed to take as long as the next smaller size, and a size that was
        seen too rarely no longer than the line says.
        """
        table = self._table
        hoped = table.copy()
        one_ns = table[seen[0]] / rows_of(seen[0])
        if min([table[cell] / rows_of(cell) for cell in seen]) < (1 - PAYS) * one_ns:
            for cell, above in pairwise(seen):
                hoped[cell + 1 : above] = [table[cell]] * (above - cell - 1)
            for cell in seen:
                if len(self._samples[cell]) < _KNOWN:
                    hoped[cell] = min(table[cell], self._intercept_ns + self._slope_ns * rows_of(cell))
        return hoped


def fit(points: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Intercept and slope, neither below 0, of the line through (rows, ns, weight), least squares of relative errors.

    Of a single point, half of the time is assumed to be fixed and half to be per row: so more rows are tried, with
    care.
    """
    if len(points) == 1:
        rows, took_ns, _ = points[0]
        return took_ns / 2, took_ns / 2 / rows
    total = sum_x = sum_y = sum_xx = sum_xy = 0.0
    for x, y, weight in points:
        relative = weight / max(1.0, y * y)
        total += relative
        sum_x += relative * x
        sum_y += relative * y
        sum_xx += relative * x * x
        sum_xy += relative * x * y
    slope = (total * sum_xy - sum_x * sum_y) / (total * sum_xx - sum_x * sum_x)
    intercept = (sum_y - slope * sum_x) / total
    if slope < 0:
        return sum_y / total, 0.0
    return (intercept, slope) if intercept >= 0 else (0.0, sum_xy / sum_xx)


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression: values that fall are replaced by their weighted mean, as no batch is faster than a smaller
    one."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for mean, weight in zip(values, weights, strict=True):
        length = 1
        while blocks and blocks[-1][0] > mean:
            before, its_weight, its_length = blocks.pop()
            mean = (before * its_weight + mean * weight) / (its_weight + weight)
            weight, length = weight + its_weight, length + its_length
        blocks.append((mean, weight, length))
    return [mean for mean, _, length in blocks for _ in range(length)]


def fastest(rates: Sequence[float], margin: float) -> list[int]:
    """For each cell, the smallest cell whose rate is within the margin of the best rate of all cells up to that
    cell."""
    found, best, least = [0], 0.0, 1
    for cell in range(1, len(rates)):
        best = max(best, rates[cell])
        while rates[least] < (1 - margin) * best:
            least += 1
        found.append(least)
    return found
