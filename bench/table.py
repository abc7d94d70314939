"""Rows of figures as Markdown tables. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench import instructions
from bench.results import Row, Sample, slice_ratios

OURS = "shoal"
COMPILED = "compiled"
BUILDS = (OURS, COMPILED)
MIB = 1024 * 1024


def summaries(rows: Sequence[Row]) -> str:
    """The summary of each build of Shoal that was measured, the compiled one under a line that names it."""
    titles = {OURS: "", COMPILED: "The compiled build:\n\n"}
    return "\n".join(f"{title}{text}" for build, title in titles.items() if (text := summary(rows, build)))


def summary(rows: Sequence[Row], build: str = OURS) -> str:
    """A line per workload: the requests/s and CPU of one build of Shoal, and both as multiples of every peer's.

    "" if that build, or every other server, was not measured.
    """
    ours = {row.workload: row for row in rows if row.peer.name == build}
    peers = list(dict.fromkeys(row.peer for row in rows if row.peer.name not in BUILDS))
    if not ours or not peers:
        return ""
    theirs = {(row.workload, row.peer): row for row in rows}
    times = [f"× {peer.short}" for peer in peers]
    lines = head(["workload", "Shoal, requests/s", *times, "CPU µs/request", *times])
    for workload, row in ours.items():
        beside = [theirs.get((workload, peer)) for peer in peers]
        rate, cpu = ("–", "–") if is_missing(row) else (count(row.median.requests_per_s), count(row.median.cpu_us))
        cells = [workload.title, rate, *(rate_ratio(row, each) for each in beside)]
        cells += [cpu, *(ratio(row, each, _cpu) for each in beside)]
        lines.append(line(cells))
    return "\n".join(lines) + "\n"


def details(rows: Sequence[Row]) -> str:
    """A table per workload with all figures."""
    return "\n".join(
        f"#### {workload.title}\n\n{detail([row for row in rows if row.workload is workload])}"
        for workload in dict.fromkeys(row.workload for row in rows)
    )


def ratio(ours: Row, theirs: Row | None, figure: Callable[[Sample], float]) -> str:
    """Our figure as a multiple of theirs; a dash where one is missing."""
    if theirs is None or is_missing(ours) or is_missing(theirs) or not figure(theirs.median):
        return "–"
    return f"{figure(ours.median) / figure(theirs.median):.2f}"


def rate_ratio(ours: Row, theirs: Row | None) -> str:
    """Our requests/s as a multiple of theirs; if the two servers were loaded in turns, the median and quartiles of the
    ratios of neighbouring slices."""
    quartiles = None
    if theirs is not None and not (is_missing(ours) or is_missing(theirs)):
        quartiles = slice_ratios(ours.median, theirs.median)
    if quartiles is None:
        return ratio(ours, theirs, lambda sample: sample.requests_per_s)
    first, middle, third = quartiles
    return f"{middle:.2f} ({first:.2f}–{third:.2f})"


def detail(rows: Sequence[Row]) -> str:
    """A table with a line per server and all figures."""
    columns = ["server", "requests/s (range)", "p50 ms", "p99 ms", "CPU µs/request", "memory MiB", "start s", "others"]
    with_perf = any(row.samples and row.median.instructions for row in rows)
    if with_perf:
        columns.append("1,000 instructions/request")
    lines = head(columns)
    remarks = []
    for row in rows:
        if is_missing(row):
            lines.append(line([row.peer.title, *["–"] * (len(columns) - 1)]))
            remarks.append(f"{row.peer.title} could not be measured: {row.fault or 'it was not started'}.")
            continue
        median, (low, high) = row.median, row.range
        rate = f"{count(median.requests_per_s)} ({count(low)}–{count(high)})"
        times = [f"{median.p50_us / 1000:.2f}", f"{median.p99_us / 1000:.2f}"]
        costs = [
            count(median.cpu_us),
            count(median.pss_bytes / MIB),
            f"{median.start_s:.2f}",
            f"{median.foreign:.0%}",
        ]
        if with_perf:
            costs.append(count(median.total_instructions / 1000))
        lines.append(line([row.peer.title, rate, *times, *costs]))
        if median.errors:
            remarks.append(f"{row.peer.title}: {count(median.errors)} failed requests in {len(row.samples)} rounds.")
    return "\n".join(lines) + "\n" + "".join(f"\n{remark}\n" for remark in remarks)


def by_process(rows: Mapping[str, Row]) -> str:
    """A table with a line per entry of `rows`, and a column of instructions per process of Shoal. Empty without
    perf."""
    counted = {name: row.median for name, row in rows.items() if not is_missing(row) and row.median.instructions}
    if not counted:
        return ""
    roles = [role for role in instructions.ROLE_NAMES if any(role in each.instructions for each in counted.values())]
    lines = head(["1,000 instructions/request", *roles, "all"])
    for name, median in counted.items():
        figures = [*(median.instructions.get(role, 0) for role in roles), median.total_instructions]
        lines.append(line([name, *(count(figure / 1000) for figure in figures)]))
    return "\n".join(lines) + "\n"


def is_missing(row: Row) -> bool:
    """Whether a row has no figures."""
    return bool(row.fault) or not row.samples


def count(number: float) -> str:
    """A number rounded to a whole one, with commas between thousands."""
    return f"{number:,.0f}"


def head(columns: Sequence[str]) -> list[str]:
    """The header and alignment lines: the first column aligned left, all others right."""
    return [line(columns), line(["---", *["---:"] * (len(columns) - 1)])]


def line(cells: Iterable[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def _cpu(sample: Sample) -> float:
    return sample.cpu_us
