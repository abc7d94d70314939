"""The memory of a running server by process: `python -m bench.memory PID`, of `shoal serve`; a table in Markdown.

    anonymous   the process's own, pages that were copied or never shared, and its part of what forks still share
    shared      its part of segments
    files       its part of programs and libraries, which other programs on the machine share, too

The sum of these is the proportional set size (PSS). Only reads.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from bench.measure import process_tree

_KIB = 1024


class Memory(NamedTuple):
    """The memory of one process, in bytes: proportional sizes by kind, and what no other process has."""

    title: str
    anonymous: int
    shared: int
    files: int
    private: int

    @property
    def total(self) -> int:
        """The proportional set size."""
        return self.anonymous + self.shared + self.files


def parse_rollup(title: str, rollup: str) -> Memory:
    """The memory of a process, from its /proc/PID/smaps_rollup."""
    sizes = {
        name: int(value.split()[0]) * _KIB
        for name, _, value in (line.partition(":") for line in rollup.splitlines()[1:])
    }
    private = sizes["Private_Dirty"] + sizes["Private_Clean"]
    return Memory(title, sizes["Pss_Anon"], sizes["Pss_Shmem"], sizes["Pss_File"], private)


def memory_by_process(root: int) -> list[Memory]:
    """The memory of each process of the tree below `root`; processes that end meanwhile are left out."""
    found = []
    for stat in process_tree(root):
        process = Path("/proc", str(stat.pid))
        try:
            title = process.joinpath("cmdline").read_bytes().rstrip(b"\0 ").replace(b"\0", b" ").decode()
            found.append(parse_rollup(title, process.joinpath("smaps_rollup").read_text()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def table(processes: list[Memory]) -> str:
    """The table, in MiB, with the sum below."""
    _, *columns = zip(*processes, strict=True)
    total = Memory("all", *map(sum, columns))
    lines = ["| process | PSS, MiB | anonymous | shared | files | its own alone |", "| --- " + "| ---: " * 5 + "|"]
    for each in (*processes, total):
        figures = (each.total, each.anonymous, each.shared, each.files, each.private)
        lines.append(" | ".join([f"| {each.title}", *(f"{figure / 2**20:.1f}" for figure in figures)]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(memory_by_process(int(sys.argv[1]))))
