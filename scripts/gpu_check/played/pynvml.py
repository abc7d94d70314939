"""NVIDIA's library as this check asks it, for a machine without a GPU: one GPU, whose memory is that of its workers.

Put on the path of a run with --on-cpu, in place of nvidia-ml-py. Memory in use is the resident memory of the processes
of this session that are workers on a GPU.
"""

import os
from collections.abc import Iterator
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1
TOTAL_NBYTES, IDLE_NBYTES = 80 << 30, 1 << 30
UUID = "GPU-played"


class NVMLError(Exception):
    """The library's error."""


def nvmlInit() -> None:
    """The driver is loaded."""


def nvmlSystemGetDriverVersion() -> str:
    """No version."""
    return "played"


def nvmlDeviceGetCount() -> int:
    """One GPU."""
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Its handle."""
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    """Its handle."""
    if uuid != UUID:
        raise NVMLError("Not Found")
    return 0


def nvmlDeviceGetUUID(_handle: int) -> str:
    """The device's UUID."""
    return UUID


def nvmlDeviceGetName(_handle: int) -> str:
    """The device's name."""
    return "Played GPU"


def nvmlDeviceGetCudaComputeCapability(_handle: int) -> tuple[int, int]:
    """A Hopper's."""
    return 9, 0


def nvmlDeviceGetPciInfo(_handle: int) -> SimpleNamespace:
    """An address that the kernel does not know."""
    return SimpleNamespace(busId="00000000:00:00.0")


def nvmlDeviceGetMigMode(_handle: int) -> tuple[int, int]:
    """Not divided."""
    return 0, 0


def nvmlDeviceGetUtilizationRates(_handle: int) -> SimpleNamespace:
    """Percent."""
    return SimpleNamespace(gpu=50)


def nvmlDeviceGetMemoryInfo(_handle: int) -> SimpleNamespace:
    """Bytes."""
    used = IDLE_NBYTES + sum(each.usedGpuMemory for each in nvmlDeviceGetComputeRunningProcesses(0))
    return SimpleNamespace(total=TOTAL_NBYTES, used=used, free=TOTAL_NBYTES - used)


def nvmlDeviceGetComputeRunningProcesses(_handle: int) -> list[SimpleNamespace]:
    """The workers of this session, by the titles that they have."""
    return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in _workers()]


def nvmlDeviceGetPowerUsage(_handle: int) -> int:
    """Milliwatts."""
    return 70_500


def nvmlDeviceGetPowerManagementLimit(_handle: int) -> int:
    """Milliwatts."""
    return 700_000


def nvmlDeviceGetTotalEnergyConsumption(_handle: int) -> int:
    """Millijoules."""
    return 5_000


def _workers() -> Iterator[tuple[int, int]]:
    session = os.getsid(0)
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.getsid(int(entry)) != session:
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                is_worker = file.read().startswith(b"shoal worker")
            with open(f"/proc/{entry}/statm", "rb") as file:
                pages = int(file.read().split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        if is_worker:
            yield int(entry), pages * os.sysconf("SC_PAGE_SIZE")
