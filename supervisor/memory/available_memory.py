"""The memory that a new segment may take without any process being killed for lack of memory.

The figures are read from the kernel's files. Runs in the supervisor, at its start and before a segment is made for a
single payload.
"""

from collections.abc import Iterator
from pathlib import Path


def available_nbytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated: the machine's rest or, where less, that of a control group above this process, where
    groups are of version 2."""
    found = [machine_nbytes("MemAvailable", proc)]
    for group in control_groups(proc, cgroups):
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
            fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # the top group has no such files
        if limit != "max":
            # Files that were not used lately are dropped before any process is killed.
            found.append(max(0, int(limit) - used + int(fields["inactive_file"])))
    return min(found)


def machine_nbytes(field: str, proc: Path) -> int:
    """A figure of /proc/meminfo in bytes. Raises OSError where descriptors have run out."""
    fields = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024


def control_groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The control groups of this process, upwards: first of version 1's memory controller, then of version 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = cgroups / "memory" if controllers else cgroups
        # In a container the path may be the host's, and the top be this process's group.
        own = top / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(top))
