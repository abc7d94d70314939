"""The memory that the end of a worker gives back to its GPU, measured and logged. Runs in the supervisor.

Measured as what the whole GPU has in use before and after, since the driver knows a container's processes by other
numbers: what others take or give back meanwhile is in the figure.
"""

import logging
from typing import Any

from shoal.placement import Gpu, Placement

_log = logging.getLogger(__name__)

_MIB = 1 << 20


class GpuMemory:
    """Asks NVIDIA's library; without it, nothing is measured."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        # Changed by leaving and left: the number of an instance → bytes in use on its GPU when it was told to end.
        self._before: dict[int, int] = {}

    def leaving(self, number: int, placement: Placement) -> None:
        """This instance's worker is being told to end."""
        if placement.gpu is not None and self._nvml is not None:
            self._before[number] = self._used_bytes(placement.gpu)

    def left(self, number: int, placement: Placement) -> None:
        """It has ended. One that was not told to is not measured: nobody knows what it had."""
        before = self._before.pop(number, None)
        if before is not None and placement.gpu is not None:
            after = self._used_bytes(placement.gpu)
            _log.info(
                "worker %s has returned %d MiB on GPU %d, where %d MiB are still in use",
                placement.instance_name, max(0, before - after) // _MIB, placement.device_id, after // _MIB,
            )  # fmt: skip

    def _used_bytes(self, gpu: Gpu) -> int:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).used)
        except nvml.NVMLError as error:
            _log.warning("GPU %d does not tell how much of its memory is in use: %s", gpu.id, error)
            return 0
