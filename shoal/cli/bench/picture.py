"""Pictures of a measurement: throughput and latency percentiles as SVG, and as a line of a terminal. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 150, 40, 50
#: The most marks of an axis (ours).
_MARKS = 6
_SPARKS = "▁▂▃▄▅▆▇█"
#: Okabe and Ito's colours, and two of Tol's, which colour-blind readers tell apart.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933", "#9aa4b2",
)  # fmt: skip

# Readable on white and on black: a picture in Markdown follows the reader's preference, not the page's colours.
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.axis { stroke: #9aa4b2; stroke-width: 1 }
.grid { stroke: #9aa4b2; stroke-width: 0.5; stroke-dasharray: 2 4 }
.goal { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of the picture: points, such as throughput a second and latency in ms, each with a label; drawn as dots
    alone where `is_line` is false, as a line alone where `has_dots` is false."""

    title: str
    points: Sequence[tuple[float, float, str]]
    is_line: bool = True
    has_dots: bool = True


def svg(
    title: str,
    series: Sequence[Series],
    goal_ms: float | None = None,
    *,
    across: str = "requests/s",
    unit: str = "ms",
    marks: Mapping[float, str] | None = None,
) -> str:
    """The picture as SVG. Its horizontal axis is throughput, or what `across` says; its vertical axis, logarithmic, is
    latency, or a figure with another unit. With `marks`, which have names, the horizontal axis is logarithmic, too,
    and ends at the outer marks."""
    points = [point for each in series for point in each.points if point[1] > 0]
    most_x = _nice(max((x for x, _, _ in points), default=1.0))
    steps = [most_x * number / (_MARKS - 1) for number in range(_MARKS)]
    named = {step: f"{step:,.6g}" for step in steps} if marks is None else marks
    latencies = [y for _, y, _ in points] + ([goal_ms] if goal_ms else [])
    low, high = min(latencies, default=1.0) / 1.3, max(latencies, default=1.0) * 1.3

    def place(x: float, y: float) -> tuple[float, float]:
        share = x / most_x if marks is None else math.log(x / min(marks)) / math.log(max(marks) / min(marks))
        across = (_WIDTH - _LEFT - _RIGHT) * share
        up = (_HEIGHT - _TOP - _BOTTOM) * math.log(y / low) / math.log(high / low)
        return _LEFT + across, _HEIGHT - _BOTTOM - up

    parts = [f'<text class="title" x="{_LEFT}" y="22">{escape(title)}</text>']
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts += [_line("axis", _LEFT, bottom, right, bottom), _line("axis", _LEFT, _TOP, _LEFT, bottom)]
    for mark, name in named.items():
        x, _ = place(mark, low)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{bottom + 38}" text-anchor="middle">{escape(across)}</text>')
    for value in _latency_marks(low, high):
        _, y = place(min(named), value)
        parts.append(_line("grid", _LEFT, y, right, y))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{f"{value:,.3g} {unit}".strip()}</text>')
    if goal_ms:
        _, y = place(min(named), goal_ms)
        parts += [
            _line("goal", _LEFT, y, right, y),
            f'<text x="{right + 8}" y="{y + 4:.1f}">goal {goal_ms:g} ms</text>',
        ]
    for number, each in enumerate(series):
        parts += _drawn(each, _COLOURS[number % len(_COLOURS)], number, place)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>\n{_STYLE}\n</style>", *parts, "</svg>", ""])


def _drawn(each: Series, colour: str, number: int, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    places = [(*place(x, y), label) for x, y, label in each.points if y > 0]
    parts = []
    if each.is_line and len(places) > 1:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for x, y, label in places if each.has_dots else ():
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(label)}</title></circle>')
    y = _TOP + 18 * number
    parts.append(f'<rect x="{_WIDTH - _RIGHT + 8}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
    parts.append(f'<text x="{_WIDTH - _RIGHT + 24}" y="{y}">{escape(each.title)}</text>')
    return parts


def sparkline(values: Sequence[float]) -> str:
    """Values as a line of blocks, the largest as the highest."""
    most = max(values, default=0.0)
    if most <= 0:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(each / most * len(_SPARKS)))] for each in values)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _nice(value: float) -> float:
    """A round number that is not less than `value`: 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if step * power >= value)


def _latency_marks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two latencies; powers of ten alone where all would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [mark for mark in marks if low <= mark <= high]
    return inside if len(inside) <= 2 * _MARKS else [mark for mark in inside if math.log10(mark) % 1 == 0]
