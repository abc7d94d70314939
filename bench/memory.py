"""The memory of a running server by process: `python -m bench.memory PID`, of `shoal serve`; a table in Markdown.

    anonymous   the process's own, pages that were copied or never shared, and its part of what forks still share
    shared      its part of segments
    files       its part of programs and libraries, which other programs on the machine share, too

The sum of these is the proportional set size (PSS). The last line counts files as for a server that is alone
on its machine: each page that one of its processes has present, once. Only reads.
"""

import sys
from array import array
from pathlib import Path
from typing import NamedTuple

from bench import measure
from bench.measure import process_tree

_PAGE = 4096
#: Bits of a page's entry in /proc/PID/pagemap: it is present, and it is a file's or shared memory's (not a copy of it).
_PRESENT, _OF_FILE = 1 << 63, 1 << 61


class Memory(NamedTuple):
    """The memory of one process, in bytes: proportional sizes by kind, and the pages that no other process has."""

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
    sizes = measure.sizes(rollup)
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


def file_pages(pid: int) -> set[tuple[str, int]]:
    """The pages of programs and libraries that a process has present: device and inode of the file, and the page's
    number in it. Raises OSError where the process has ended, or is another user's."""
    pages = set[tuple[str, int]]()
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            bounds, _, offset, device, inode, *path = line.split(maxsplit=5)
            if inode == "0" or path[0].startswith(("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")):
                continue
            start, end = (int(bound, 16) // _PAGE for bound in bounds.split("-"))
            pagemap.seek(8 * start)
            entries = array("Q", pagemap.read(8 * (end - start)))
            first = int(offset, 16) // _PAGE
            pages.update(
                (f"{device} {inode}", first + number)
                for number, entry in enumerate(entries)
                if entry & _PRESENT and entry & _OF_FILE
            )
    return pages


def files_alone(root: int) -> int:
    """Bytes of programs and libraries that the tree of processes below `root` has present, each page once."""
    pages = set[tuple[str, int]]()
    for stat in process_tree(root):
        try:
            pages |= file_pages(stat.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return _PAGE * len(pages)


def table(processes: list[Memory], files: int) -> str:
    """The table, in MiB, with the sum below, and the sum with `files` in place of the processes' parts of files."""
    _, *columns = zip(*processes, strict=True)
    total = Memory("all", *map(sum, columns))
    lines = ["| process | PSS, MiB | anonymous | shared | files | its own alone |", "| --- " + "| ---: " * 5 + "|"]
    alone = total._replace(title="all, were the server alone", files=files)
    for each in (*processes, total, alone):
        figures = (each.total, each.anonymous, each.shared, each.files, each.private)
        lines.append(" | ".join([f"| {each.title}", *(f"{figure / 2**20:.1f}" for figure in figures)]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(memory_by_process(int(sys.argv[1])), files_alone(int(sys.argv[1]))))
