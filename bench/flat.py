"""The chapter of docs/benchmarks.md that compares Shoal with itself: does cost stay flat? Pure."""

from collections.abc import Mapping, Sequence

from bench.comparisons import NUM_MODELS, Comparison, Figure
from bench.document import Conditions, others
from bench.results import Row, Sample
from bench.table import MIB, by_process, count, detail, head, is_missing, line, ratio

TEXT = """\
## Shoal beside itself: does cost stay flat?

Written by `scripts/bench --flat --write`. One workload, {workload}, in two settings that differ in
one thing: A B A B …, {rounds} rounds of {seconds} s. The tables show medians; a ratio is the second median divided by
the first, and in parentheses is what it was in the single rounds. A target is met where all rounds meet it; where they
do not agree, or others took more than {max_foreign:.0%} of the cores, that is unclear.

{summary}
### Conditions

{machine}
- {version}
- The load generator ({generator}, one thread) runs on the same cores, and so do the connections beside it: one
  thread of Python, at nice 19.
- Each setting is a server of its own, started anew in every round, with its defaults. Its answer is checked before the
  load and after it, while it still bears what it has to; failed requests are counted and told, and no target is met
  with any. The 60 MB are checked, too, and idle connections must all have been answered once and be open at the end.
- A connection beside the load that the server closes comes again after 5 s. Slow readers read 4 KB a second; of 602 KB
  the kernel's buffers take most, of 8 MB they do not.
- *Instructions*: of the processes, not of the kernel for them, counted by `perf stat` in a second of its own.{no_perf}
- {others}

### Every figure

{details}"""

#: Where other programs took more of the cores, a rate or a p99 says nothing about Shoal (ours: seen with 5 to 75 %).
MAX_FOREIGN = 0.15
_HEADINGS = {
    Figure.RATE: ("requests/s", "at least"), Figure.P99: ("p99 ms", "at most"), Figure.CPU: ("CPU µs", "at most"),
}  # fmt: skip
NO_PERF = " Here perf is missing or may not count, so there are none."


def summary(rows: Mapping[Comparison, Sequence[Row]]) -> str:
    """The tables of ratios, of growth, and of instructions by process."""
    tables = [_ratios(rows, figure) for figure in Figure]
    tables += [_growth(plain, other) for each, (plain, other) in rows.items() if each.name == "models"]
    tables.append(_instructions(rows))
    return "\n".join(table for table in tables if table)


def details(rows: Mapping[Comparison, Sequence[Row]]) -> str:
    """A table per comparison with all figures."""
    return "\n".join(f"#### {each.title}\n\n{detail(pair)}" for each, pair in rows.items())


def markdown(rows: Mapping[Comparison, Sequence[Row]], where: Conditions) -> str:
    """The chapter, as Markdown."""
    every = [row for pair in rows.values() for row in pair]
    return TEXT.format(
        workload=every[0].workload.title,
        rounds=where.rounds,
        max_foreign=MAX_FOREIGN,
        seconds=where.seconds,
        summary=summary(rows),
        machine="\n".join(f"- {each}" for each in where.machine),
        version=where.peers[0][1],
        generator=where.generator,
        no_perf="" if any(sample.instructions for row in every for sample in row.samples) else NO_PERF,
        others=others(every),
        details=details(rows),
    )


def verdict(comparison: Comparison, plain: Row, other: Row) -> str:
    """Whether the target is met; unclear where other programs took too much CPU, or the rounds do not agree."""
    if is_missing(plain) or is_missing(other):
        return "not measured"
    if errors := plain.median.errors + other.median.errors:
        return f"no: {count(errors)} failed requests"
    if (busy := max(plain.median.foreign, other.median.foreign)) > MAX_FOREIGN:
        return f"unclear: others {busy:.0%}"
    ratios, target = _ratios_of_rounds(comparison.figure, plain, other), comparison.target
    are_met = {each >= target if comparison.figure is Figure.RATE else each <= target for each in ratios}
    if len(are_met) > 1:
        return "unclear: some rounds"
    return "yes" if are_met == {True} else "**no**"


def _ratios(rows: Mapping[Comparison, Sequence[Row]], figure: Figure) -> str:
    chosen = {each: pair for each, pair in rows.items() if each.figure is figure}
    if not chosen:
        return ""
    unit, bound = _HEADINGS[figure]
    columns = ["", f"{unit}, plain", "so", "×", f"{bound}", "met", "CPU ×"]
    with_perf = any(row.samples and row.median.instructions for pair in chosen.values() for row in pair)
    lines = head([*columns, "instructions ×"] if with_perf else columns)
    for each, (plain, other) in chosen.items():
        values = ["–" if is_missing(row) else _shown(figure, row.median) for row in (plain, other)]
        times = ratio(other, plain, lambda sample: _figure(figure, sample)) + _range(figure, plain, other)
        cells = [each.title, *values, times, f"{each.target:g}", verdict(each, plain, other)]
        cells.append(ratio(other, plain, lambda sample: sample.cpu_us))
        if with_perf:
            cells.append(ratio(other, plain, lambda sample: sample.total_instructions))
        lines.append(line(cells))
    return "\n".join(lines) + "\n"


def _range(figure: Figure, plain: Row, other: Row) -> str:
    if is_missing(plain) or is_missing(other):
        return ""
    ratios = _ratios_of_rounds(figure, plain, other)
    return f" ({min(ratios):.2f}–{max(ratios):.2f})"


def _ratios_of_rounds(figure: Figure, plain: Row, other: Row) -> list[float]:
    pairs = zip(plain.samples, other.samples, strict=False)
    return [_figure(figure, after) / _figure(figure, before) for before, after in pairs]


def _growth(plain: Row, other: Row) -> str:
    if is_missing(plain) or is_missing(other):
        return ""
    lines = head(["", "1 model", f"{NUM_MODELS} models", "each further one"])
    for title, unit, places in (("start, s", 1.0, 2), ("memory, MiB", float(MIB), 0)):
        figure = [(each.start_s if unit == 1.0 else each.pss_bytes) / unit for each in (plain.median, other.median)]
        further = (figure[1] - figure[0]) / (NUM_MODELS - 1)
        lines.append(line([title, *(f"{each:,.{places}f}" for each in figure), f"{further:.2f}"]))
    return "\n".join(lines) + "\n"


def _instructions(rows: Mapping[Comparison, Sequence[Row]]) -> str:
    named: dict[str, Row] = {}
    for pair in rows.values():
        for row in pair:
            if not is_missing(row):
                named.setdefault(row.peer.title, row)
    return by_process(named)


def _figure(figure: Figure, sample: Sample) -> float:
    if figure is Figure.CPU:
        return sample.cpu_us
    return sample.requests_per_s if figure is Figure.RATE else sample.p99_us


def _shown(figure: Figure, sample: Sample) -> str:
    if figure is Figure.CPU:
        return count(sample.cpu_us)
    return count(sample.requests_per_s) if figure is Figure.RATE else f"{sample.p99_us / 1000:.2f}"
