"""The table of docs/reliability.md that the check writes: generated between two markers, one line for each of the bar.

Lines that a run has not measured keep what an earlier run has found: a long check may be run in pieces.
"""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from tests.reliability.row import Kind, Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by scripts/reliability -->", "<!-- end of what scripts/reliability writes -->"
HEAD = "| what | bar | measured | met | when |\n| --- | --- | --- | --- | --- |"


class Measured(NamedTuple):
    """What a run has found for one line."""

    figure: str
    is_met: bool | None  # None: the row has handed nothing over
    when: str = ""


def cells(*texts: str) -> str:
    """One line of a table."""
    return "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in texts) + " |"


def word(measured: Measured, kind: Kind) -> str:
    """Whether the bar is met, in the table's word."""
    if measured.is_met:
        return "yes"
    return "**NO**" if kind is Kind.FACT else "no"


def when(form: str) -> str:
    """The day, the commit, the form of the check (short, or which part of the whole), and how many processes have run
    on this machine at a time in the last minute."""
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "?"
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return f"{day}, {commit}, {form}, load {os.getloadavg()[0]:.0f}"


def machine() -> str:
    """The machine in a few words."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory_kib = int(re.findall(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[0])
    return (
        f"{len(names)} cores of {names[0] if names else platform.machine()}, {memory_kib >> 20} GiB, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )


def written(page: str, rows: tuple[Row, ...], found: Mapping[tuple[str, str], Measured]) -> str:
    """The page with the new figures, keyed by row's name and line's key; other lines keep theirs, unless their bar
    has changed. Raises ValueError
    for a page without the markers."""
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    kept = {tuple(line.split(" | ")[:2]): line for line in page[start:end].splitlines() if line.startswith("| ")}
    lines = [HEAD]
    for row in rows:
        for key, line in row.lines.items():
            new = found.get((row.name, key))
            if new is not None:
                lines.append(cells(line.what, line.bar, new.figure, word(new, line.kind), new.when))
            else:
                empty = cells(line.what, line.bar, "not yet", "", "")
                lines.append(kept.get(tuple(empty.split(" | ")[:2]), empty))
    return page[:start] + f"\n\nOn {machine()}:\n\n" + "\n".join(lines) + "\n\n" + page[end:]
