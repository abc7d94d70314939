"""What the kernel says of memory: how many processes of ours it has killed for want of it, and how much there may be.

Runs in the supervisor, whose control group its workers share. Both versions of control groups; where there is none,
nothing is known of kills, and the machine's memory is the limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

#: Version 1 writes "no limit" as the largest multiple of a page.
_NO_LIMIT = 1 << 62


class OomKills:
    """Tells whether a child died of the OOM killer: the count has risen since it started, and for no one before it."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        # Changed by claim: the kills that have been explained, or happened before.
        self._num_explained = 0

    def count(self) -> int:
        """Processes of our group killed so far, by whichever limit; 0 where the kernel does not tell."""
        for group in self._groups():
            for name in ("memory.events", "memory.oom_control"):
                try:
                    fields = dict(line.split() for line in (group / name).read_text().splitlines())
                except OSError:
                    continue
                if "oom_kill" in fields:
                    return int(fields["oom_kill"])
        return 0

    def claim(self, count_at_start: int) -> bool:
        """Whether there is a kill for a child that began at that count; one kill explains one death."""
        self._num_explained = max(self._num_explained, count_at_start)
        if self.count() <= self._num_explained:
            return False
        self._num_explained += 1
        return True

    def limit_bytes(self) -> int:
        """The least that a group above us allows, or the machine's memory."""
        try:
            fields = dict(line.split(":") for line in (self._proc / "meminfo").read_text().splitlines())
            limits = [int(fields["MemTotal"].split()[0]) * 1024]
        except OSError:  # descriptors have run out
            limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        for group in self._groups():
            for name in ("memory.max", "memory.limit_in_bytes"):
                try:
                    text = (group / name).read_text().strip()
                except OSError:
                    continue
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        return min(limits)

    def _groups(self) -> Iterator[Path]:
        """Our group and those above it, first of version 1's memory controller, then of version 2."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = self._cgroups / "memory" if controllers else self._cgroups
            # In a container the path may be the host's, and the top be our group.
            own = top / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group.is_relative_to(top))
