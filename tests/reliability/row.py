"""A row of the check: the lines of the table that it measures, and what its process is given and hands over."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

#: Begins what a row's process prints of one line: its key, the figure, and whether the bar is met, as JSON.
RESULT = "reliability line: "
#: The different faults that a cell of the table shows, and the most characters of each.
MAX_FAULTS, MAX_FAULT = 2, 120


class Kind(Enum):
    """What it means where a line's bar is not met."""

    FACT = "fact"  # the server is wrong: the whole check fails
    FIGURE = "figure"  # a time or a share, which another load on the machine may spoil: it is reported


class Line(NamedTuple):
    """One line of the table."""

    what: str
    bar: str
    kind: Kind = Kind.FACT


class Row(NamedTuple):
    """One measurement, in a process of its own; `function` is "module:function" in this package."""

    name: str
    function: str
    whole_s: float  # the time limit of the whole form
    short_s: float
    lines: dict[str, Line]


@dataclass(frozen=True, slots=True)
class Course:
    """What a row is given."""

    directory: Path  # of the row alone; goes when the row ends
    is_short: bool
    seed: int
    part: float = 1.0  # of the whole form

    def pick(self, short: int, whole: int) -> int:
        """How often, or for how many seconds, in this form of the check."""
        return short if self.is_short else max(short, round(whole * self.part))

    def found(self, key: str, measured: str, faults: Iterable[str] = (), *, is_met: bool) -> None:
        """Hand over what was measured for the line with this key, with the first few different faults, shortened. A
        line found twice keeps the last figure."""
        shown = [each[:MAX_FAULT] + "…" * (len(each) > MAX_FAULT) for each in list(dict.fromkeys(faults))[:MAX_FAULTS]]
        print(RESULT + json.dumps([key, "; ".join([measured, *shown]), is_met]), flush=True)


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies; the largest where there are few. Not of an empty list."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
