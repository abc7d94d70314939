"""Targets of Shoal beside another server, and the table that says which are met. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers import Peer
from bench.results import Row, Sample
from bench.table import OURS, count, head, is_missing, line, ratio


@dataclass(frozen=True, slots=True)
class Target:
    """A target of Shoal under a workload: at least, or at most, a figure, or a multiple of the other server's."""

    workload: str
    title: str
    figure: Callable[[Sample], float]
    bound: float
    is_ratio: bool = True
    is_most: bool = False
    unit: float = 1.0  # of the figure as it is shown

    def is_met(self, figure: float) -> bool:
        """Whether this figure meets the target."""
        return figure <= self.bound if self.is_most else figure >= self.bound


def table(targets: Sequence[Target], rows: Sequence[Row], rival: Peer) -> str:
    """A table with a line per target; a target is met where every round meets it."""
    found = {(row.workload.name, row.peer.name): row for row in rows}
    lines = head(["workload", "", "Shoal", rival.short, "×", "wanted", "met"])
    for each in targets:
        ours, theirs = found.get((each.workload, OURS)), found.get((each.workload, rival.name))
        if ours is None:
            continue
        wanted = f"{'≤' if each.is_most else '≥'} {each.bound:g}{' ×' if each.is_ratio else ''}"
        times = ratio(ours, theirs, each.figure)
        cells = [ours.workload.title, each.title, _shown(each, ours), _shown(each, theirs), times, wanted]
        lines.append(line([*cells, verdict([each.is_met(figure) for figure in _reached(each, ours, theirs)])]))
    return "\n".join(lines) + "\n"


def verdict(rounds: Sequence[bool]) -> str:
    """The word for a target that these rounds have met or missed."""
    if not rounds:
        return "not measured"
    return "yes" if all(rounds) else "in some rounds" if any(rounds) else "**no**"


def _reached(target: Target, ours: Row, theirs: Row | None) -> list[float]:
    """The figures compared with the target, one per round."""
    if not target.is_ratio:
        return [target.figure(sample) for sample in ours.samples]
    pairs = zip(ours.samples, theirs.samples if theirs is not None else (), strict=False)
    return [target.figure(first) / target.figure(second) for first, second in pairs]


def _shown(target: Target, row: Row | None) -> str:
    if row is None or is_missing(row):
        return "–"
    figure = target.figure(row.median) / target.unit
    return count(figure) if figure >= 10 or target.unit == 1.0 else f"{figure:.2f}"
