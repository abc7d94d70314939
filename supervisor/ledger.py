"""The ledger: all processes' counts of what they have taken and given back, logged in one line on SIGUSR1.

Processes are asked in the order in which memory goes back: front ends release, the batcher passes on, workers take
back, each before it answers. So with nothing in flight every `…_acquired` equals its `…_released`, although RELEASE and
FREE wake no process. The figures come from tables that each process keeps for its work.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from shoal.messages.shared import LedgerWanted
from shoal.open_files import num_open
from shoal.supervisor.event_loop import Task, first
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member

_log = logging.getLogger(__name__)

#: How long all processes of one kind may take to answer. A worker answers only between two batches.
ANSWER_S = 2.0


class Ledger:
    """Collects the counts of all processes that have joined, and logs them; one collection at a time."""

    def __init__(self, star: Star) -> None:
        self._loop = star.loop
        self._star = star
        # The collection under way. Changed by ask.
        self._writing: Task[None] | None = None

    def ask(self) -> None:
        """Begin a collection, unless one is under way."""
        if self._writing is None or self._writing.done():
            self._writing = self._loop.start(self._write())

    async def _write(self) -> None:
        """Request the counts of each kind of process in turn, with a time limit for each, and log the answers."""
        asked = list[tuple[Member, str]]()
        for members in self._star.members():
            for member in members:
                member.counts = None
                asked.append((member, title_of(member.pid)))
            acknowledged = self._star.acknowledgements.announce([(member, LedgerWanted()) for member in members])
            await first(acknowledged, limit_s=ANSWER_S)
        living = [({"title": title, "pid": member.pid}, member.counts) for member, title in asked if member.is_open]
        ledger = {
            "processes": [who | counts for who, counts in living if counts is not None],
            "silent": [who for who, counts in living if counts is None],
            "supervisor": self._own(),
        }
        _log.info("ledger %s", json.dumps(ledger))

    def _own(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "descriptors": num_open(),
            "children": num_children(),
            "shared_bytes": shared_bytes(),
            **self._star.payloads.segments.counts,
        }


def num_children() -> int:
    """The number of the supervisor's children that are not reaped; -1 where the kernel does not list a process's
    children."""
    try:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return -1


def shared_bytes() -> int:
    """Bytes of all segments of the server that are not given back: the supervisor has a descriptor of each."""
    sizes = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:  # the descriptor with which scandir read the directory
            continue
        if target.startswith(("/memfd:shoal ", "/dev/shm/#")):
            status = entry.stat()
            sizes[status.st_dev, status.st_ino] = status.st_size  # several descriptors lead to one segment
    return sum(sizes.values())


def title_of(pid: int) -> str:
    """A process's title, as `ps` shows it; empty where the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:  # the process has just ended
        return ""
