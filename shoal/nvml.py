"""The GPUs, as NVIDIA's management library tells of them. Runs in the road.

The package nvidia-ml-py is an extra, and its library comes with NVIDIA's driver: without either there are no GPUs.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

_log = logging.getLogger("shoal")

_PERCENT, _MILLI = 0.01, 0.001


def load_nvml() -> Any:
    """The module, its library initialized; None where there is no package, no driver or no GPU."""
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
    """The GPUs by UUID; one that the library fails to open has no metrics."""
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
    """All GPUs that the library shows this process."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = dict(_handles(nvml)) if nvml else {}
        #: In J, when this server began to look: the counter starts at 0.
        self._first_energy = {uuid: self._figures(handle).get("energy_j", 0) for uuid, handle in self._handles.items()}

    def read(self) -> list[dict[str, Any]]:
        """The figures of families.GPU_FAMILIES, as far as each GPU has them."""
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
            except nvml.NVMLError:  # this GPU, or this partition of one, does not have it
                continue
        return figures
