"""A picture of time against size: a line per way to ask, both axes in powers of ten. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from bench.picture import STYLE

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 60, 560, 16, 390  # of the lines; the names of the ways are right of them
LINE = 15  # between two names
COLOURS = ("#7a5195", "#bc5090", "#ef5675", "#ff764a", "#ffa600", "#4c9f70", "#0a7ea4", "#2aa7d1", "#9aa4b2")

LINES = """\
.size { text-anchor: middle }
polyline { fill: none; stroke-width: 2 }
line { stroke: #9aa4b2; stroke-opacity: 0.3 }"""

Point = tuple[int, float]  # bytes, µs


def svg(lines: Mapping[str, Sequence[Point]]) -> str:
    """The picture as SVG; `lines` has a few points or more under each name."""
    points = [point for line in lines.values() for point in line]
    across = Axis(min(x for x, _ in points), max(x for x, _ in points), LEFT, RIGHT)
    low, high = floor(log10(min(y for _, y in points))), ceil(log10(max(y for _, y in points)))
    up = Axis(10.0**low, 10.0**high, BOTTOM, TOP)
    parts = [_grid(duration(10.0**power), up(10.0**power)) for power in range(low, high + 1)]
    parts += [
        f'<text class="size" x="{across(nbytes):.0f}" y="{BOTTOM + 18}">{size(nbytes)}</text>'
        for nbytes in sorted({x for x, _ in points})
    ]
    # The slowest at the largest size first, each name beside the end of the way's line, as far as there is room.
    ends = sorted(lines, key=lambda name: up(lines[name][-1][1]) if lines[name][-1][0] == max(points)[0] else 0.0)
    y = 0.0
    for name in ends:
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        path = " ".join(f"{across(nbytes):.1f},{up(us):.1f}" for nbytes, us in lines[name])
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        y = max(y + LINE, up(lines[name][-1][1]))
        parts.append(f'<text x="{RIGHT + 12}" y="{y + 4:.1f}" style="fill: {colour}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, f"<style>\n{STYLE}\n{LINES}\n</style>", *parts, "</svg>", ""])


class Axis:
    """A logarithmic axis: from a number to a coordinate of the picture."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = log10(low), start
        self._scale = (end - start) / ((log10(high) - log10(low)) or 1)

    def __call__(self, number: float) -> float:
        return self._start + (log10(number) - self._low) * self._scale


def _grid(label: str, y: float) -> str:
    text = f'<text class="name" x="{LEFT - 8}" y="{y + 4:.1f}">{label}</text>'
    return f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>{text}'


def size(nbytes: int) -> str:
    """A size in the largest unit of which it is a whole number."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def duration(us: float) -> str:
    """A duration in the largest unit of which it has at least one."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if us >= unit:
            return f"{us / unit:.0f} {name}"
    return f"{us:.0f} µs"
