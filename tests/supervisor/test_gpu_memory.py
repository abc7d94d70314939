"""gpu_memory.py: what is logged of a worker's end; the library is played."""

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.placement import Gpu, Placement
from shoal.supervisor.gpu_memory import GpuMemory

ON_GPU = Placement("m_0_0", "m_0", "KIND_GPU", 3, (0,), Gpu(3, "GPU-1bb", "8.0", (0,)))
ON_CPU = Placement("m_0_0", "m_0", "KIND_CPU", 0, (0,))


class NVMLError(Exception):
    """As the library raises it."""


class Nvml:
    """One GPU, whose use of memory the test sets; None: it does not tell."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.used_mib: int | None = 9000

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-1bb"
        return uuid

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        if self.used_mib is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(used=self.used_mib << 20)


def told(memory: GpuMemory, placement: Placement, caplog: pytest.LogCaptureFixture, after: Any = None) -> list[str]:
    with caplog.at_level("INFO"):
        memory.leaving(1, placement)
        if after is not None:
            memory._nvml.used_mib = after
        memory.left(1, placement)
        memory.left(1, placement)  # once
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(("after", "returned"), [(1088, 7912), (9500, 0)])
def test_what_a_worker_returns(after: int, returned: int, caplog: pytest.LogCaptureFixture) -> None:
    assert told(GpuMemory(Nvml()), ON_GPU, caplog, after) == [
        f"worker m_0_0 has returned {returned} MiB on GPU 3, where {after} MiB are still in use"
    ]


@pytest.mark.parametrize(("memory", "placement"), [(GpuMemory(), ON_GPU), (GpuMemory(Nvml()), ON_CPU)])
def test_nothing_is_said_of_what_is_not_measured(
    memory: GpuMemory, placement: Placement, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(memory, placement, caplog) == []


def test_a_gpu_that_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    nvml = Nvml()
    nvml.used_mib = None
    assert told(GpuMemory(nvml), ON_GPU, caplog)[0] == (
        "GPU 3 does not tell how much of its memory is in use: Not Supported"
    )
