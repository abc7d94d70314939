"""gpu_memory.py: what is logged of a worker's end; the library is a fake."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.placement import Gpu, Placement
from shoal.supervisor.memory.gpu_memory import GpuMemory

GPU = Gpu(3, "GPU-1bb", "8.0", (0,))
ON_GPU = Placement("m_0_0", "m_0", "KIND_GPU", 3, (0,), GPU)
ON_CPU = Placement("m_0_0", "m_0", "KIND_CPU", 0, (0,))


class NVMLError(Exception):
    """As the library raises it."""


class Nvml:
    """Two GPUs, whose use of memory the test sets, one figure per question; None: it does not tell."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.used_mib: list[int | None] = []

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid in ("GPU-1bb", "GPU-1cc")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        used_mib = self.used_mib.pop(0)
        if used_mib is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(used=used_mib << 20, total=80 << 30)


@pytest.fixture(autouse=True)
def _is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be said may take its time on a busy machine."""
    monkeypatch.setattr("shoal.supervisor.memory.measuring.LAST_S", 60.0)


def memory_of(*used_mib: int | None) -> GpuMemory:
    nvml = Nvml()
    nvml.used_mib = list(used_mib)
    return GpuMemory(nvml)


def told(memory: GpuMemory, caplog: pytest.LogCaptureFixture, placement: Placement = ON_GPU) -> list[str]:
    with caplog.at_level("INFO"):
        memory.leaving(1, placement)
        memory.left(1, placement)
        memory.left(1, placement)  # once
        memory.close()
    return caplog.messages


@pytest.mark.parametrize(("after", "returned"), [(1088, 7912), (9500, 0)])
def test_what_a_worker_returns(after: int, returned: int, caplog: pytest.LogCaptureFixture) -> None:
    assert told(memory_of(9000, after), caplog) == [
        f"worker m_0_0 has returned {returned} MiB on GPU 3, where {after} MiB are still in use"
    ]


def test_workers_that_end_together_return_what_each_had(caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = ON_GPU._replace(gpu=Gpu(4, "GPU-1cc", "8.0", (0,)))
    placements = {1: ON_GPU, 2: ON_GPU, 3: ON_GPU, 4: elsewhere}
    memory = memory_of(40, 40, 40, 40, 30, 15, 10, 39)
    with caplog.at_level("INFO"):
        for number, placement in placements.items():
            memory.leaving(number, placement)
        for number, placement in placements.items():
            memory.left(number, placement)
        memory.close()
    assert [int(message.split()[4]) for message in caplog.messages] == [10, 15, 5, 1]


@pytest.mark.parametrize(("memory", "placement"), [(GpuMemory(), ON_GPU), (GpuMemory(Nvml()), ON_CPU)])
def test_nothing_is_said_of_what_is_not_measured(
    memory: GpuMemory, placement: Placement, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(memory, caplog, placement) == []


@pytest.mark.parametrize("used_mib", [(None,), (9000, None)])
def test_a_gpu_that_does_not_tell(used_mib: tuple[int | None, ...], caplog: pytest.LogCaptureFixture) -> None:
    assert told(memory_of(*used_mib), caplog) == ["GPU 3 does not tell how much of its memory is in use: Not Supported"]


def test_no_process_waits_for_a_gpu_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.supervisor.memory.measuring.LAST_S", 0.01)
    answers, memory = threading.Event(), memory_of(9000, 9000)
    monkeypatch.setattr(Nvml, "nvmlDeviceGetHandleByUUID", lambda _self, _uuid: answers.wait())
    memory.leaving(1, ON_GPU)
    memory.left(1, ON_GPU)
    memory.close()
    answers.set()
