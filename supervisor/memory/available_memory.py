"""The memory that a new segment may take without any process being killed for lack of memory.

The figures are read from the kernel's files. Runs in the supervisor, at its start and before a segment is made for a
single payload.
"""

from pathlib import Path

from shoal.supervisor.control_groups import CGROUPS, PROC, control_groups

#: For control groups of version 2 and of version 1: the files with a group's limit and with the bytes in use, and the
#: field of memory.stat with the bytes of cached files that were not used lately.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_nbytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that can be allocated: what the machine has left or, where less, what a control group above this process
    has left."""
    found = [machine_nbytes("MemAvailable", proc)]
    for group in control_groups("memory", proc, cgroups):
        for limit_name, used_name, inactive_name in _FILES:
            try:
                limit = (group / limit_name).read_text().strip()
                used = int((group / used_name).read_text())
                fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                if limit != "max":  # version 1 writes a number larger than any machine's memory
                    # Files that were not used lately are dropped before any process is killed.
                    found.append(max(0, int(limit) - used + int(fields[inactive_name])))
            except (OSError, ValueError, KeyError):
                continue  # the top group of version 2 has no such files, and no group has both versions'
    return min(found)


def machine_nbytes(field: str, proc: Path) -> int:
    """A figure of /proc/meminfo in bytes. Raises OSError where descriptors have run out."""
    fields = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024
