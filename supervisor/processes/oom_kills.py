"""The kernel's figures on memory: how many of this server's processes it has killed for lack of memory, and the limit.

Runs in the supervisor, whose control group its workers share. Reads control groups of versions 1 and 2; without any,
kills are unknown, and the machine's memory is the limit.
"""

import os
from pathlib import Path

from shoal.supervisor.control_groups import CGROUPS, PROC, control_groups
from shoal.supervisor.memory.available_memory import machine_nbytes

#: Version 1 writes "no limit" as the largest multiple of a page.
_NO_LIMIT = 1 << 62


class OomKills:
    """Finds out whether a child was killed by the OOM killer: by a kill since its start that explains no other
    death."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc = proc
        self._cgroups = cgroups
        # Changed by claim: the number of kills that have been explained, or happened before the child's start.
        self._num_explained = 0

    def count(self) -> int:
        """The number of this control group's processes killed, by whichever limit; 0 where the kernel does not say."""
        for group in control_groups("memory", self._proc, self._cgroups):
            for name in ("memory.events", "memory.oom_control"):
                try:
                    fields = dict(line.split() for line in (group / name).read_text().splitlines())
                    if "oom_kill" in fields:
                        return int(fields["oom_kill"])
                except (OSError, ValueError):
                    continue
        return 0

    def claim(self, count_at_start: int) -> bool:
        """Whether a kill explains the death of a child that started at that count; each kill explains one death."""
        self._num_explained = max(self._num_explained, count_at_start)
        if self.count() <= self._num_explained:
            return False
        self._num_explained += 1
        return True

    def limit_bytes(self) -> int:
        """The lowest memory limit of the control groups above this process, or the machine's memory."""
        try:
            limits = [machine_nbytes("MemTotal", self._proc)]
        except OSError:  # descriptors have run out
            limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        for group in control_groups("memory", self._proc, self._cgroups):
            for name in ("memory.max", "memory.limit_in_bytes"):
                try:
                    text = (group / name).read_text().strip()
                except OSError:
                    continue
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        return min(limits)
