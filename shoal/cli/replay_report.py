"""The report of a replay as a page of HTML with its pictures in it: latencies, and how far values are apart. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from shoal.cli.bench.picture import Series, svg

if TYPE_CHECKING:
    from shoal.cli.replay_comparison import Answer, Difference
    from shoal.recorder.recorded import RecordedRequest

#: Percentiles of latency that are drawn: each whole one, and two near the end.
_PERCENTS = (*range(100), 99.5, 99.9, 100)
#: Most points of a picture, and most rows of the table (ours: a page of a megabyte).
_MAX_POINTS, _MAX_ROWS = 2000, 1000
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: 0.2rem; text-align: left; border-bottom: 1px solid #9aa4b2 }
svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } }"""


def as_page(
    title: str,
    told: Mapping[str, Any],
    pairs: "Sequence[tuple[RecordedRequest, Answer]]",
    unequal: "Sequence[Difference]",
) -> str:
    """The page as HTML. `told` is the report in the form of JSON, `pairs` are the requests with the replay's answers,
    `unequal` are the differences."""
    facts = [
        ("requests", told["requests"]),
        ("as recorded", told["equal"]),
        ("with another outcome", told["outcome_differs"]),
        ("with other values", told["values_differ"]),
        ("failed in the replay", told["failed"]),
        ("batches that could not be formed as recorded", told["batches_not_as_recorded"]),
        ("recorded, half and 99 % of the requests within", _within(told["recorded_ms"])),
        ("replayed, half and 99 % of the requests within", _within(told["replayed_ms"])),
        ("sent later than recorded, half and 99 % by at most", _within(told["late_ms"])),
    ]
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>\n{_STYLE}\n</style></head>',
        f"<body><h1>{escape(title)}</h1>",
        _table(("", ""), facts),
        "<h2>Latency</h2>",
        _latencies(pairs),
    ]
    if distances := _distances(pairs, unequal):
        parts += ["<h2>How far values are apart</h2>", distances]
    if unequal:
        rows = [(each.number, each.kind, each.what) for each in unequal[:_MAX_ROWS]]
        parts += ["<h2>Differences</h2>", _table(("request", "of its", "difference"), rows)]
        if len(unequal) > _MAX_ROWS:
            parts.append(f"<p>and {len(unequal) - _MAX_ROWS} more</p>")
    return "\n".join([*parts, "</body></html>", ""])


def _within(found: Mapping[str, float]) -> str:
    return f"{found['p50']} ms, {found['p99']} ms"


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join([f"<th>{escape(each)}</th>" for each in titles])
    body = ["<tr>" + "".join([f"<td>{escape(str(cell))}</td>" for cell in row]) + "</tr>" for row in rows]
    return "\n".join(["<table>", *([f"<tr>{head}</tr>"] if any(titles) else []), *body, "</table>"])


def _latencies(pairs: "Sequence[tuple[RecordedRequest, Answer]]") -> str:
    """The picture of latency, recorded and replayed: for each percentage, the time within which so many of the requests
    were answered."""
    from shoal.cli.replay_comparison import quantile_ms

    sides = (
        ("recorded", [request.total_ns for request, _ in pairs]),
        ("replayed", [answer.time_ns for _, answer in pairs]),
    )
    series = []
    for name, times_ns in sides:
        found = [(percent, quantile_ms(times_ns, percent / 100)) for percent in _PERCENTS]
        points = [(percent, ms, f"{name}: {percent:g} % within {ms:,.3f} ms") for percent, ms in found]
        series.append(Series(name, points, has_dots=False))
    return svg("Latency within which so many of the requests were answered", series, across="% of the requests")


def _distances(pairs: "Sequence[tuple[RecordedRequest, Answer]]", unequal: "Sequence[Difference]") -> str:
    """The picture of each request's largest distance between a recorded value and the replayed one, by the request's
    time of arrival; "" if all distances are 0, as those of texts are."""
    arrivals = {request.number: request.arrival_ns for request, _ in pairs}
    first_ns = min(arrivals.values(), default=0)

    def points(distance: "Mapping[int, float]") -> list[tuple[float, float, str]]:
        return [
            ((arrivals[number] - first_ns) / 1e9, value, f"request {number}: {value:.3g}")
            for number, value in distance.items()
        ]

    absolute = _largest(unequal, "max_abs")
    if not absolute:
        return ""
    series = [
        Series("absolute", points(absolute), is_line=False),
        Series("of the larger value", points(_largest(unequal, "max_rel")), is_line=False),
    ]
    return svg("Largest distance of a value from the recorded one", series, across="s from the first request", unit="")


def _largest(unequal: "Sequence[Difference]", figure: str) -> dict[int, float]:
    """Number of a request → the largest finite distance of its outputs, for the _MAX_POINTS largest."""
    found: dict[int, float] = {}
    for each in unequal:
        if 0 < (value := getattr(each, figure)) < float("inf"):
            found[each.number] = max(value, found.get(each.number, 0.0))
    return dict(sorted(found.items(), key=lambda item: -item[1])[:_MAX_POINTS])
