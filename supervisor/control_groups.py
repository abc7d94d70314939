"""The control groups above this process, of versions 1 and 2, and the CPU time that they grant.

The figures are read from the kernel's files. Figures in another form than the kernel's documentation gives,
such as a sandbox may write, are passed over. Runs in the supervisor, and in `shoal doctor`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def control_groups(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[Path]:
    """The groups of this process, each before the one above it: first in version 1's hierarchy of this controller, then
    in version 2's."""
    try:
        lines = os.fsdecode((proc / "self" / "cgroup").read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, mark, rest = line.partition(":")
        controllers, other_mark, path = rest.partition(":")
        if not (mark and other_mark) or (controllers and controller not in controllers.split(",")):
            continue
        top = cgroups / controller if controllers else cgroups
        # In a container `path` may be that of the host while `top` is the container's own group: callers skip groups
        # that do not exist.
        own = top / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(top))


def cpu_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """The CPU time that the groups grant, as a number of cores; None: no limit."""
    quotas = []
    for group in control_groups("cpu", proc, cgroups):
        try:
            quota, period = _quota_and_period(group)
            if quota not in ("max", "-1"):
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # the top group has no such files
    return min(quotas, default=None)


def _quota_and_period(group: Path) -> tuple[str, str]:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except FileNotFoundError:
        return (group / "cpu.cfs_quota_us").read_text().strip(), (group / "cpu.cfs_period_us").read_text()
    return quota, period
