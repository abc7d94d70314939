"""A stand-in for nvidia-ml-py on a machine without a GPU: one GPU, whose used memory is that of its workers.

Put on the path of a run with --on-cpu. Memory in use is the resident memory of the processes of this session that are
workers. Figures that no process determines are constants.
"""

import os
from collections.abc import Iterator
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1
TOTAL_NBYTES, IDLE_NBYTES = 80 << 30, 1 << 30
UUID = "GPU-fake"


class NVMLError(Exception):
    """The error of the library's functions."""


def nvmlInit() -> None:
    """Succeed: there is no driver to load."""


def nvmlSystemGetDriverVersion() -> str:
    """The driver's version, by which the stand-in can be recognised."""
    return "fake"


def nvmlDeviceGetCount() -> int:
    """The number of GPUs: 1."""
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """The handle of the GPU with this index."""
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    """The handle of the GPU with this UUID. Raises NVMLError for any other than UUID."""
    if uuid != UUID:
        raise NVMLError("Not Found")
    return 0


def nvmlDeviceGetUUID(_handle: int) -> str:
    """The GPU's UUID."""
    return UUID


def nvmlDeviceGetName(_handle: int) -> str:
    """The GPU's name."""
    return "Fake GPU"


def nvmlDeviceGetCudaComputeCapability(_handle: int) -> tuple[int, int]:
    """The GPU's compute capability, major and minor: a Hopper's."""
    return 9, 0


def nvmlDeviceGetPciInfo(_handle: int) -> SimpleNamespace:
    """The GPU's PCI address, one that the kernel does not know: its cores are unknown."""
    return SimpleNamespace(busId="00000000:00:00.0")


def nvmlDeviceGetMigMode(_handle: int) -> tuple[int, int]:
    """The GPU's MIG mode, now and after a restart: not divided."""
    return 0, 0


def nvmlDeviceGetUtilizationRates(_handle: int) -> SimpleNamespace:
    """The GPU's utilization in percent."""
    return SimpleNamespace(gpu=50)


def nvmlDeviceGetMemoryInfo(_handle: int) -> SimpleNamespace:
    """The GPU's memory in bytes: all, used and free."""
    used = IDLE_NBYTES + sum(each.usedGpuMemory for each in nvmlDeviceGetComputeRunningProcesses(0))
    return SimpleNamespace(total=TOTAL_NBYTES, used=used, free=TOTAL_NBYTES - used)


def nvmlDeviceGetComputeRunningProcesses(_handle: int) -> list[SimpleNamespace]:
    """The processes on the GPU with their memory in bytes: the workers of this session, found by their titles."""
    return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in _workers()]


def nvmlDeviceGetPowerUsage(_handle: int) -> int:
    """The GPU's power in milliwatts."""
    return 70_500


def nvmlDeviceGetPowerManagementLimit(_handle: int) -> int:
    """The GPU's power limit in milliwatts."""
    return 700_000


def nvmlDeviceGetTotalEnergyConsumption(_handle: int) -> int:
    """The GPU's energy since the driver was loaded, in millijoules."""
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
        except (OSError, IndexError):  # the process has ended meanwhile
            continue
        if is_worker:
            yield int(entry), pages * os.sysconf("SC_PAGE_SIZE")
