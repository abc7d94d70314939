"""The figures of isolation: answers of a paced client, a situation's bar, and rows of a Markdown table. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from bench.table import count, head, line

OK, REFUSED = 200, 503
#: The status of an answer that never came, or cannot be read.
FAILED = 0


@dataclass(frozen=True, slots=True)
class PacedRequest:
    """One request of a paced client: when it was due and when it was answered, in seconds of one clock."""

    due_s: float
    end_s: float
    status: int

    @property
    def time_s(self) -> float:
        """Seconds from the time at which the request was due to its answer: so a late client hides no delay."""
        return self.end_s - self.due_s


class Unit(Enum):
    """The unit of a situation's figures."""

    MS = "ms"
    CPU_US = "µs of CPU"
    CONNECTIONS = "connections"


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit of a figure under load: a multiple of the figure in quiet, or an absolute one.

    With `is_least` the figure must be at least that. A situation with refused (503) or failed requests meets no bar.
    """

    times: float = 3.0
    limit: float | None = None
    is_least: bool = False

    def __str__(self) -> str:
        sign = "≥" if self.is_least else "≤"
        return f"{sign} {self.times:g} ×" if self.limit is None else f"{sign} {self.limit:g}"

    def is_met(self, measure: "Measure") -> bool:
        """Whether a measure meets this bar."""
        bound = self.times * measure.quiet if self.limit is None else self.limit
        is_within = measure.loaded >= bound if self.is_least else measure.loaded <= bound
        return is_within and not (measure.num_refused or measure.num_failed or measure.is_cut)


RATIO = Bar()
#: The bar of a takeover of the batcher, whatever users' code does.
TAKEOVER = Bar(limit=100)


@dataclass(frozen=True, slots=True)
class Measure:
    """The result of one round: a figure in quiet, the figure under load, and the paced client's lost requests."""

    quiet: float
    loaded: float
    num_refused: int = 0
    num_failed: int = 0
    note: str = ""
    is_cut: bool = False  # the figure under load is a lower bound: the measurement ended then


@dataclass(frozen=True, slots=True)
class Situation:
    """A line of the table: the work beside an idle model, and the measurement, on a server with these models."""

    name: str
    title: str
    figure: str
    measure: Callable[[Any], Measure]
    models: Mapping[str, str] = field(hash=False)  # name → the first lines of its config.pbtxt; see models.py
    flags: tuple[str, ...] = ()
    bar: Bar = RATIO
    unit: Unit = Unit.MS


@dataclass(slots=True)
class Row:
    """A situation on one checkout: a measure per round, or the reason why there is none."""

    situation: Situation
    server: str
    # Changed by the run.
    measures: list[Measure]
    fault: str = ""

    @property
    def median(self) -> Measure:
        """Each figure's median over the rounds; lost requests are added up, and every note is kept once."""
        return Measure(
            median(each.quiet for each in self.measures),
            median(each.loaded for each in self.measures),
            sum(each.num_refused for each in self.measures),
            sum(each.num_failed for each in self.measures),
            "; ".join(dict.fromkeys(each.note for each in self.measures if each.note)),
            2 * sum(each.is_cut for each in self.measures) > len(self.measures),
        )


def p99_ms(answers: Sequence[PacedRequest]) -> float:
    """The p99 in ms of all requests, answered or not; 0 without any."""
    times_s = [each.time_s for each in answers]
    return 1000 * (quantiles(times_s, n=100, method="inclusive")[98] if len(times_s) > 1 else sum(times_s))


def compared(
    quiet: Sequence[PacedRequest], loaded: Sequence[PacedRequest], patience_s: float, note: str = ""
) -> Measure:
    """The p99 of a paced client in quiet and under load; requests lost in quiet count as well."""
    figure, most = p99_ms(loaded), 1000 * patience_s
    return Measure(p99_ms(quiet), min(figure, most), *lost([*quiet, *loaded]), note, figure >= most)


def lost(answers: Sequence[PacedRequest]) -> tuple[int, int]:
    """The numbers of refused and of failed requests."""
    num_refused = sum(each.status == REFUSED for each in answers)
    return num_refused, sum(each.status != OK for each in answers) - num_refused


def longest_silence_s(answers: Sequence[PacedRequest], since_s: float) -> float:
    """The longest time in seconds without a right answer, from `since_s` until the last of all answers."""
    ends = sorted(each.end_s for each in answers if each.status == OK and each.end_s > since_s)
    last = max((each.end_s for each in answers), default=since_s)
    moments = [since_s, *ends, max(since_s, last)]
    return max(after - before for before, after in pairwise(moments))


def verdict(row: Row) -> str:
    """Whether the bar is met, in words."""
    if row.fault or not row.measures:
        return "not measured"
    return "yes" if row.situation.bar.is_met(row.median) else "**no**"


def table(rows: Sequence[Row]) -> str:
    """A line per situation and checkout, then faults and notes."""
    lines = head(["beside", "checkout", "figure", "quiet", "loaded", "×", "refused", "failed", "bar", "met"])
    remarks = []
    for row in rows:
        situation = row.situation
        start = [situation.title, row.server, f"{situation.figure}, {situation.unit.value}"]
        end = [str(situation.bar), verdict(row)]
        if row.fault or not row.measures:
            lines.append(line([*start, *["–"] * 5, *end]))
            remarks.append(f"- {situation.name}, {row.server}: not measured: {row.fault or 'it was not run'}.")
            continue
        found = row.median
        loaded = ("> " if found.is_cut else "") + number(found.loaded)
        times = f"{found.loaded / found.quiet:.1f}" if found.quiet else "–"
        lost_cells = [count(found.num_refused), count(found.num_failed)]
        lines.append(line([*start, number(found.quiet), loaded, times, *lost_cells, *end]))
        if found.note:
            remarks.append(f"- {situation.name}, {row.server}: {found.note}.")
    return "\n".join(lines) + "\n" + ("\n" + "\n".join(remarks) + "\n" if remarks else "")


def number(value: float) -> str:
    """A number with three digits, or in whole if it has more."""
    return count(value) if value >= 100 else f"{value:.3g}"
