"""The costs of a server: CPU time and memory of its whole process tree, from /proc.

Only reads. CPU time includes children that have ended, where their parent has waited for them.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

#: The most seconds that a turn waits for a machine on which others do little (ours).
MOST_WAIT_S = 20.0
T = TypeVar("T")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # 100 on every system: a resolution of 10 ms, fine over seconds


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    parent: int
    session: int
    ticks: int  # utime + stime + cutime + cstime
    started: int  # ticks after boot: with the pid, an identity that is never used again


def parse_stat(line: str) -> Stat:
    """A line of /proc/PID/stat; the command's name in it may have spaces and parentheses."""
    head, _, rest = line.rpartition(") ")
    fields = rest.split()  # from the third field of proc(5) on: state, ppid, pgrp, session, …
    return Stat(
        int(head.split(" ", 1)[0]), int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])), int(fields[19])
    )


def processes() -> list[Stat]:
    """All processes of this machine."""
    stats = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stats.append(parse_stat(Path("/proc", entry, "stat").read_text()))
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended since the listing
    return stats


def process_tree(root: int) -> list[Stat]:
    """The processes of the tree below `root`, with others of its session (a child whose parent has ended)."""
    stats = {stat.pid: stat for stat in processes()}

    def belongs(stat: Stat) -> bool:
        if root in (stat.pid, stat.session):
            return True
        parent = stats.get(stat.parent)
        return parent is not None and belongs(parent)

    return [stat for stat in stats.values() if belongs(stat)]


def cpu_s(root: int) -> float:
    """CPU time of the tree so far, in seconds."""
    return sum(stat.ticks for stat in process_tree(root)) / TICKS_PER_S


def memory(pid: int) -> dict[str, int]:
    """The sizes in a process's smaps_rollup in bytes, as Rss, Pss and Private_Dirty. Raises OSError for a process that
    has ended."""
    return sizes(Path("/proc", str(pid), "smaps_rollup").read_text())


def sizes(rollup: str) -> dict[str, int]:
    """The sizes in the text of a smaps_rollup, in bytes."""
    lines = (line.partition(":") for line in rollup.splitlines()[1:])
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines}


def pss_bytes(root: int) -> int:
    """Memory of the tree in bytes, with shared pages divided among those that share them (proportional set size)."""
    total = 0
    for stat in process_tree(root):
        try:
            total += memory(stat.pid).get("Pss", 0)  # a process that has ended and was not waited for has none
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def quiet_turn(turn: Callable[[], T], most_foreign: float) -> tuple[T, bool]:
    """The result of a measurement, and whether other programs took no more than a share of the machine meanwhile. The
    measurement begins when they have taken no more for half a second, or after MOST_WAIT_S."""
    end_s = time.monotonic() + MOST_WAIT_S
    is_quiet = False
    while not is_quiet and time.monotonic() < end_s:
        _, is_quiet = _watched(partial(time.sleep, 0.5), most_foreign)
    return _watched(turn, most_foreign)


def _watched(turn: Callable[[], T], most_foreign: float) -> tuple[T, bool]:
    before_s, start_s = foreign_cpu_s(), time.monotonic()
    found = turn()
    return found, foreign_cpu_s() - before_s <= most_foreign * (time.monotonic() - start_s) * (os.cpu_count() or 1)


def machine_cpu_s() -> float:
    """CPU time of the whole machine in seconds, as `shoal tune` counts it."""
    from shoal.cli.tune.other_programs import machine_cpu_s as found_s  # imported here: --help runs without Shoal

    return found_s()


def foreign_cpu_s() -> float:
    """CPU time in seconds of all processes but this one and its descendants, so far."""
    return machine_cpu_s() - cpu_s(os.getpid())
