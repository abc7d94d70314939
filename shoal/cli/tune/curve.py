"""How long batches take by their number of rows, as a server has counted it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: How many batches of a size must have been executed before the mean of their times counts (ours).
_LEAST_BATCHES = 5


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """Rows of a batch → the mean time of its execution in ms, for the sizes that a server has executed
    with one choice of settings."""

    ms: Mapping[int, float] = field(default_factory=dict)

    def most_rows_per_s(self, max_batch: int) -> float | None:
        """The most rows that an instance which never waits executes per second in batches of up to `max_batch` rows;
        None where nothing is known.

        The time of a size that was not executed is interpolated between two that were. Below the smallest executed
        size, a row takes as long as in that size; above the largest, a batch takes as long as the largest.
        """
        sizes = sorted(self.ms)
        if not sizes:
            return None
        return (
            max(rows / self._ms(rows, sizes) for rows in {*(each for each in sizes if each < max_batch), max_batch})
            * 1e3
        )

    def _ms(self, rows: int, sizes: Sequence[int]) -> float:
        below = max((size for size in sizes if size <= rows), default=None)
        above = min((size for size in sizes if size >= rows), default=None)
        if below is None or above is None:
            only = sizes[0] if below is None else sizes[-1]
            return self.ms[only] * (rows / only if below is None else 1.0)
        if below == above:
            return self.ms[below]
        return self.ms[below] + (self.ms[above] - self.ms[below]) * (rows - below) / (above - below)


def curve_of(explanation: Mapping[str, Any]) -> BatchCurve:
    """The curve of a model's last version in a server's answer to /v2/models/M/batches."""
    versions = explanation.get("versions") or [{}]
    measured = versions[-1].get("measured", ())
    return BatchCurve({each["rows"]: each["ns"] / 1e6 for each in measured if each["batches"] >= _LEAST_BATCHES})


def as_text(curve: BatchCurve, num_skipped: int) -> str:
    """The curve in a sentence, with sizes that double and the largest size, and the number of settings that were not
    tried because by these times they cannot win; "" for an empty curve."""
    if not curve.ms:
        return ""
    sizes: list[int] = []
    for rows in sorted(curve.ms):
        if not sizes or rows >= 2 * sizes[-1]:
            sizes.append(rows)
    times = ", ".join(f"{rows}: {curve.ms[rows]:.3g} ms" for rows in dict.fromkeys([*sizes, max(curve.ms)]))
    saved = f" Settings that cannot win by these times, and were not tried: {num_skipped}." if num_skipped else ""
    return f"Mean time of a batch by its rows, with the present settings: {times}.{saved}"
