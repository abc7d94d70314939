"""The memory that a new segment may take without any process being killed for lack of memory.

The figures are read from the kernel's files. Runs in the supervisor, at its start and before a segment is made for a
single payload.
"""

from pathlib import Path


def available_nbytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated: the machine's rest or, where less, that of a control group above this process."""
    return min([_of_machine(proc), *_of_groups(proc, cgroups)])


def _of_machine(proc: Path) -> int:
    fields = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _of_groups(proc: Path, cgroups: Path) -> list[int]:
    """Bytes that each group from this process's own to the top has left; empty under version 1, or without groups."""
    paths = [line[3:] for line in (proc / "self" / "cgroup").read_text().splitlines() if line.startswith("0::")]
    found = []
    for path in paths:
        own = cgroups / path.lstrip("/")
        for group in (own, *own.parents):
            try:
                limit = (group / "memory.max").read_text().strip()
                used = int((group / "memory.current").read_text())
                fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except OSError:
                continue  # the top group has no such files
            if limit != "max":
                # Files that were not used lately are dropped before any process is killed.
                found.append(max(0, int(limit) - used + int(fields["inactive_file"])))
            if group == cgroups:
                break
    return found
