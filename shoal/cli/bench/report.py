"""The figures of a measurement as a table, as notes in sentences, and as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from shoal.cli.bench.arguments import Goal
from shoal.cli.bench.measurement import NUM_AGREEING, Measured, Ratios
from shoal.cli.bench.picture import sparkline
from shoal.cli.models import table

PERCENTS = (50.0, 90.0, 95.0, 99.0)
_HEAD = ["LOAD", "REQUESTS/S", "P50", "P90", "P95", "P99", "QUEUE", "COMPUTE", "ROWS/BATCH", "CLIENT", "ERRORS"]
#: The most sentences of errors that are printed for a level (ours).
_MAX_SENTENCES = 5


def ms(value: float | None) -> str:
    """A latency with three digits."""
    if value is None:
        return "-"
    return f"{value:.3f} ms" if value < 1 else f"{value:.2f} ms" if value < 100 else f"{value:,.0f} ms"


def cells(measured: Measured) -> list[str]:
    """The row of a level in the table."""
    whole, server = measured.whole, measured.server
    latencies_ms = [whole.percentile_ms(each) for each in PERCENTS]
    return [
        measured.level.title,
        f"{whole.requests_per_s:,.1f}",
        *map(ms, latencies_ms),
        ms(server.queue_ms if server is not None else None),
        ms(server.compute_ms if server is not None else None),
        f"{server.rows_per_batch:.1f}" if server is not None and server.rows_per_batch is not None else "-",
        f"{whole.busy_share:.0%} busy",
        str(whole.num_errors),
    ]


def as_text(found: Sequence[Measured], rows: int) -> str:
    """A table with a row for each level, and notes on the levels."""
    lines = [table(_HEAD, [cells(each) for each in found])]
    if len(found) > 1:
        rates = [each.whole.requests_per_s for each in found]
        slow = [each.whole.percentile_ms(99) or 0.0 for each in found]
        lines.append(f"\nrequests/s {sparkline(rates)}   p99 {sparkline(slow)}")
    if rows > 1:
        lines.append(f"\nEach request has {rows} rows.")
    lines += [note for each in found for note in notes(each)]
    return "\n".join(lines)


def as_compared(
    first: Sequence[Measured], second: Sequence[Measured], shares: Sequence[Ratios], urls: Sequence[str]
) -> str:
    """A table with two rows and the ratios for each level."""
    rows = []
    for one, other, share in zip(first, second, shares, strict=True):
        rows += [["A", *cells(one)], ["B", *cells(other)]]
        figures = [share.throughput, *(share.latency[each] for each in PERCENTS)]
        rows.append(["B/A", "", *("-" if each is None else f"{each:.3f}" for each in figures), *[""] * 5])
    lines = [f"A: {urls[0]}", f"B: {urls[1]}", "", table(["", *_HEAD], rows), ""]
    lines.append("B/A: medians of the ratios of windows that were measured in turns.")
    for name, found in (("A", first), ("B", second)):
        lines += [f"{name}, {note}" for each in found for note in notes(each)]
    return "\n".join(lines)


def notes(measured: Measured) -> list[str]:
    """Sentences of warning about a level: figures that do not mean what they seem to, and the errors that occurred."""
    whole, title = measured.whole, measured.level.title
    found = []
    if not measured.is_stable and len(measured.windows) < NUM_AGREEING:
        found.append(f"{title}: not known to be stable: that takes {NUM_AGREEING} --windows that agree.")
    elif not measured.is_stable:
        found.append(f"{title}: not stable: the last windows differ, in throughput or p50, by more than --stability.")
    num_ended = len(whole.latencies_ns) + whole.num_errors
    if measured.is_clients_limit and num_ended:
        cost_us = whole.cpu_ns / num_ended / 1e3
        found.append(
            f"{title}: the client was the bottleneck: {whole.busy_share:.0%} busy, {cost_us:.1f} µs of CPU a request, "
            f"so it asks at most {1e6 / max(cost_us, 0.1):,.0f}/s. The server may be faster."
        )
    if measured.num_waiting:
        found.append(
            f"{title}: {measured.num_waiting} requests were due and waited for a connection: the server is slower than "
            "the rate, or --connections is too small. Their waiting is in the latency."
        )
    for sentence, count in whole.errors.most_common(_MAX_SENTENCES):
        found.append(f"{title}: {count} errors: {sentence}")
    if len(whole.errors) > _MAX_SENTENCES:
        found.append(f"{title}: and {len(whole.errors) - _MAX_SENTENCES} more kinds of error.")
    return found


def as_json(measured: Measured, rows: int) -> dict[str, Any]:
    """The figures of a level, for programs. Latencies are in ms; times in the server are means in ms."""
    whole, server = measured.whole, measured.server
    num_ended = len(whole.latencies_ns) + whole.num_errors
    return {
        "load": measured.level.title,
        "concurrency": measured.level.num_slots if measured.level.rate is None else None,
        "rate": measured.level.rate,
        "requests": len(whole.latencies_ns),
        "seconds": whole.duration_ns / 1e9,
        "requests_per_s": whole.requests_per_s,
        "rows_per_s": whole.requests_per_s * rows,
        **{f"p{each:g}_ms": whole.percentile_ms(each) for each in PERCENTS},
        "max_ms": whole.percentile_ms(100),
        "server": None if server is None else server._asdict(),
        "is_stable": measured.is_stable,
        "waiting": measured.num_waiting,
        "client": {
            "busy_share": whole.busy_share,
            "cpu_us_per_request": whole.cpu_ns / num_ended / 1e3 if num_ended else None,
            "is_bottleneck": measured.is_clients_limit,
        },
        "errors": dict(whole.errors),
    }


def judged(goals: Sequence[Goal], found: Sequence[Measured]) -> tuple[bool, list[str]]:
    """Whether one of the levels meets all goals, and a sentence that names the level.

    Of several levels that meet all goals, the sentence names the one with the most throughput.
    """
    good = [each for each in found if all(goal.is_met(each.whole) for goal in goals) and not each.whole.num_errors]
    wanted = " and ".join(goal.text for goal in goals)
    if not good:
        return False, [f"Goal {wanted}: missed{' at every level' if len(found) > 1 else ''}."]
    best = max(good, key=lambda each: each.whole.requests_per_s)
    return True, [f"Goal {wanted}: met with {best.whole.requests_per_s:,.1f} requests/s, {best.level.title}."]
