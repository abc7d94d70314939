"""Rows of figures as Markdown tables. Pure."""

from collections.abc import Callable, Iterable, Sequence

from scripts.benchmark.results import Row, Sample

OURS = "shoal"
MIB = 1024 * 1024


def summary(rows: Sequence[Row]) -> str:
    """A line per workload: Shoal's requests/s and CPU, and both as multiples of every peer's. Empty without Shoal."""
    ours = {row.workload: row for row in rows if row.peer.name == OURS}
    peers = list(dict.fromkeys(row.peer for row in rows if row.peer.name != OURS))
    if not ours or not peers:
        return ""
    theirs = {(row.workload, row.peer): row for row in rows}
    times = [f"× {peer.short}" for peer in peers]
    lines = _head(["workload", "Shoal, requests/s", *times, "CPU µs/request", *times])
    for workload, row in ours.items():
        cells = [workload.title]
        for figure in (_rate, _cpu):
            cells.append("–" if _missing(row) else _count(figure(row.median)))
            cells += [ratio(row, theirs[workload, peer], figure) for peer in peers]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def details(rows: Sequence[Row]) -> str:
    """A table per workload with everything that was measured."""
    return "\n".join(
        f"### {workload.title}\n\n{_detail([row for row in rows if row.workload is workload])}"
        for workload in dict.fromkeys(row.workload for row in rows)
    )


def ratio(ours: Row, theirs: Row, figure: Callable[[Sample], float]) -> str:
    """Ours as a multiple of theirs; a dash where one is missing."""
    if _missing(ours) or _missing(theirs) or not figure(theirs.median):
        return "–"
    return f"{figure(ours.median) / figure(theirs.median):.2f}"


def _detail(rows: Sequence[Row]) -> str:
    columns = ["server", "requests/s (range)", "p50 ms", "p99 ms", "CPU µs/request", "memory MiB", "start s", "others"]
    lines = _head(columns)
    remarks = []
    for row in rows:
        if _missing(row):
            lines.append(_line([row.peer.title, *["–"] * (len(columns) - 1)]))
            remarks.append(f"{row.peer.title} could not be measured: {row.fault or 'it was not started'}.")
            continue
        median, (low, high) = row.median, row.range
        rate = f"{_count(median.requests_per_s)} ({_count(low)}–{_count(high)})"
        times = [f"{median.p50_us / 1000:.2f}", f"{median.p99_us / 1000:.2f}"]
        costs = [
            _count(median.cpu_us),
            _count(median.pss_bytes / MIB),
            f"{median.start_s:.2f}",
            f"{median.foreign:.0%}",
        ]
        lines.append(_line([row.peer.title, rate, *times, *costs]))
        if median.errors:
            remarks.append(f"{row.peer.title}: {_count(median.errors)} failed requests in {len(row.samples)} rounds.")
    return "\n".join(lines) + "\n" + "".join(f"\n{remark}\n" for remark in remarks)


def _missing(row: Row) -> bool:
    return bool(row.fault) or not row.samples


def _rate(sample: Sample) -> float:
    return sample.requests_per_s


def _cpu(sample: Sample) -> float:
    return sample.cpu_us


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _head(columns: Sequence[str]) -> list[str]:
    return [_line(columns), _line(["---", *["---:"] * (len(columns) - 1)])]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
