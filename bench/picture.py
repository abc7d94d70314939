"""A picture of a run's requests/s: for each workload a bar per server, as long as its share of the best. Pure."""

from collections.abc import Sequence
from html import escape

from bench.results import Row

WIDTH = 760
LEFT = 150  # of the bars; the names of the servers are left of it
LONGEST = 500
BAR = 15
TITLE = 26
GAP = 12

# Readable on white and on black: a picture in Markdown follows the reader's preference, not the page's colours.
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 }
.name { text-anchor: end }
rect { fill: #9aa4b2 }
.shoal, .compiled { fill: #0a7ea4 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } rect { fill: #5b6673 }
  .shoal, .compiled { fill: #2aa7d1 } }"""


def svg(rows: Sequence[Row]) -> str:
    """The picture as SVG."""
    parts = []
    y = GAP
    for workload in dict.fromkeys(row.workload for row in rows):
        group = [row for row in rows if row.workload is workload]
        best = max((row.median.requests_per_s for row in group if _measured(row)), default=1.0)
        parts.append(f'<text class="title" x="{LEFT}" y="{y + 12}">{escape(workload.title)}</text>')
        y += TITLE
        for row in group:
            rate = row.median.requests_per_s if _measured(row) else 0.0
            length = LONGEST * rate / best
            label = f"{rate:,.0f}/s" if rate else "not measured"
            parts.append(f'<text class="name" x="{LEFT - 8}" y="{y + 8}">{escape(row.peer.title)}</text>')
            parts.append(
                f'<rect class="{row.peer.name}" x="{LEFT}" y="{y - 2}" width="{length:.0f}" height="{BAR - 4}"/>'
            )
            parts.append(f'<text x="{LEFT + length + 8:.0f}" y="{y + 8}">{label}</text>')
            y += BAR
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", *parts, "</svg>", ""])


def _measured(row: Row) -> bool:
    return bool(row.samples) and not row.fault
