"""TorchServe's metrics of the machine, in the units of its dashboards: gauges of the CPU, the memory, and the disk of
the root directory. Read when they are asked for, so they are never older than a scrape. Front-end processes.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from shoal.frontend.metrics.cpu import Cpu

_MEGABYTE, _GIGABYTE = 1 << 20, 1 << 30


class Gauge(NamedTuple):
    """A figure of the machine."""

    name: str
    unit: str
    value: float


@cache
def _machine() -> Cpu:
    """The reader of this process; the first utilization is that since it was made."""
    return Cpu()


def system_metrics(
    read: Callable[[], Mapping[str, float]] | None = None,
    disk: Callable[[str], tuple[int, int, int]] = shutil.disk_usage,
) -> Iterator[Gauge]:
    """All gauges. `read` is Cpu.read, `disk` returns the total, used and free bytes of a path's file system."""
    figures = (read or _machine().read)()
    total, used = figures["memory_total_bytes"], figures["memory_used_bytes"]
    _, disk_used, disk_free = disk("/")
    yield Gauge("CPUUtilization", "Percent", 100 * figures["utilization"])
    yield Gauge("MemoryUtilization", "Percent", 100 * used / total if total else 0.0)
    yield Gauge("MemoryUsed", "Megabytes", used / _MEGABYTE)
    yield Gauge("MemoryAvailable", "Megabytes", (total - used) / _MEGABYTE)
    in_use = disk_used + disk_free
    yield Gauge("DiskUtilization", "Percent", 100 * disk_used / in_use if in_use else 0.0)
    yield Gauge("DiskUsage", "Gigabytes", disk_used / _GIGABYTE)
    yield Gauge("DiskAvailable", "Gigabytes", disk_free / _GIGABYTE)
