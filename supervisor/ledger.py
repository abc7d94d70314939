"""The ledger: what every process has taken and given back, asked for by SIGUSR1 and told in one line of the log.

Processes are asked in the order in which memory goes back: front ends release, the batcher passes on, workers take
back, each before it answers. So with nothing in flight every `…_acquired` equals its `…_released`, although RELEASE
and FREE wake no process. No process counts for this: the figures are in the tables that the work needs anyway.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from shoal.ledger import descriptors
from shoal.messages.shared import LedgerWanted
from shoal.supervisor.event_loop import EventLoop, Task, first
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member

_log = logging.getLogger(__name__)

#: How long the processes asked together may take. A worker answers between two batches only.
ANSWER_S = 2.0


class Ledger:
    """Asks all processes that have joined, then logs. A ledger asked for meanwhile is the one under way."""

    def __init__(self, loop: EventLoop, star: Star) -> None:
        self._loop = loop
        self._star = star
        # Changed by ask: what is under way.
        self._writing: Task[None] | None = None

    def ask(self) -> None:
        """Begin, unless it is under way."""
        if self._writing is None or self._writing.done():
            self._writing = self._loop.start(self._write())

    async def _write(self) -> None:
        """Ask all processes, round by round, for as long as each round may take, and write what they answered."""
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
            "descriptors": descriptors(),
            "children": num_children(),
            "shared_bytes": shared_bytes(),
            **self._star.payloads.counts,
        }


def num_children() -> int:
    """Processes that the supervisor has started and not reaped, as the kernel lists them; -1 where it does not."""
    try:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return -1


def shared_bytes() -> int:
    """Bytes of all segments that the supervisor has a descriptor of, which is all there are until it lets go."""
    sizes = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:  # the listing's own
            continue
        if target.startswith(("/memfd:shoal ", "/dev/shm/#")):
            status = entry.stat()
            sizes[status.st_dev, status.st_ino] = status.st_size  # several descriptors lead to one segment
    return sum(sizes.values())


def title_of(pid: int) -> str:
    """What `ps` shows."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:  # it has just ended
        return ""
