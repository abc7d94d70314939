"""The GPUs and their figures, by NVIDIA's management library. Used in the road and the supervisor.

The package nvidia-ml-py is an extra, and its library comes with NVIDIA's driver: without either, there are no GPUs.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any

_log = logging.getLogger("shoal")

_PERCENT, _MILLI = 0.01, 0.001
#: NVIDIA's management library, as nvidia-ml-py loads it.
LIBRARY = "libnvidia-ml.so.1"


def has_library() -> bool:
    """Whether NVIDIA's management library is there. Without, the import of nvidia-ml-py (36 ms, 2 MiB) is saved."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def load_nvml() -> Any:
    """The module pynvml with its library initialized; None without the package, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("no metrics of GPUs: %s", error)
        return None
    return pynvml


def _handles(nvml: Any) -> Iterator[tuple[str, Any]]:
    """The library's handles of GPUs, by UUID; a GPU that cannot be opened has no metrics."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        _log.warning("no metrics of GPUs: %s", error)
        return
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield str(nvml.nvmlDeviceGetUUID(handle)), handle
        except nvml.NVMLError as error:
            _log.warning("no metrics of the GPU that NVIDIA's library has as number %d: %s", index, error)


class Gpus:
    """All GPUs that the library shows to this process."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = dict(_handles(nvml)) if nvml else {}
        #: Energy in J at the server's start, by UUID: the server's counter starts at 0.
        self._first_energy = {uuid: self._figures(handle).get("energy_j", 0) for uuid, handle in self._handles.items()}

    def read(self) -> list[dict[str, Any]]:
        """The figures of metric_families.GPU_FAMILIES, as far as each GPU has them."""
        read = []
        for uuid, handle in self._handles.items():
            figures = self._figures(handle)
            if "energy_j" in figures:
                figures["energy_j"] -= self._first_energy[uuid]
            read.append({"uuid": uuid, **figures})
        return read

    def _figures(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        sources: dict[str, Callable[[], float]] = {
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * _PERCENT,
            "memory_total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "power_usage_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * _MILLI,
            "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) * _MILLI,
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _MILLI,
        }
        figures = {}
        for name, source in sources.items():
            try:
                figures[name] = source()
            except nvml.NVMLError:  # this GPU, or part of one, lacks this figure
                continue
        return figures
