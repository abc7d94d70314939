"""memory/gpu_memory.py: what a load is told of a GPU that is full, or does not say; the library is a fake."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.placement import Gpu, Placement
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory import gpu_memory
from shoal.supervisor.memory.gpu_memory import GpuMemory, MemoryUse, refuse_full_gpus

GPUS = [Gpu(number, f"GPU-{number}", "9.0", (0,)) for number in range(2)]
BOTH = [Placement(f"m_0_{gpu.id}", "m_0", "KIND_GPU", gpu.id, (0,), gpu) for gpu in GPUS]
ON_CPU = [Placement("m_0_0", "m_0", "KIND_CPU", 0, (0,))]


class NVMLError(Exception):
    """As the library raises it."""


class Nvml:
    """GPUs of 1000 MiB, by UUID the MiB in use; None: it does not tell."""

    NVMLError = NVMLError

    def __init__(self, **used_mib: int | None) -> None:
        self._used_mib = used_mib

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid.replace("GPU-", "gpu_")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        used_mib = self._used_mib[handle]
        if used_mib is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(used=used_mib << 20, total=1000 << 20)


def load(memory: GpuMemory, placements: Sequence[Placement], limits: dict[int, float]) -> None:
    """A load as far as the limits: on a loop that waits for the library's thread."""
    loop = EventLoop()
    task = loop.begin(refuse_full_gpus("model 'm' version 1", placements, limits, memory, loop))
    loop.after(task, loop.stop)
    loop.run()
    memory.close()
    task.result()


@pytest.mark.parametrize(
    ("placements", "limits"),
    [(BOTH, {0: 0.8, 1: 0.9}), (BOTH, {1: 0.9}), (BOTH[:1], {0: 0.8, 1: 0.1}), (ON_CPU, {0: 0.0}), (BOTH, {})],
)
def test_a_load_where_there_is_room(placements: Sequence[Placement], limits: dict[int, float]) -> None:
    load(GpuMemory(Nvml(gpu_0=800, gpu_1=900)), placements, limits)


def test_a_load_on_a_gpu_that_is_full() -> None:
    with pytest.raises(UnavailableError) as caught:
        load(GpuMemory(Nvml(gpu_0=800, gpu_1=901)), BOTH, {0: 0.8, 1: 0.9})
    assert str(caught.value) == (
        "model 'm' version 1 is not loaded on GPU 1: 901 of 1000 MiB of its memory are in use, more than "
        "--model-load-gpu-limit=1:0.9 allows. Unload other models, or raise the limit"
    )


@pytest.mark.parametrize("memory", [GpuMemory(), GpuMemory(Nvml(gpu_0=None))], ids=["no library", "no answer"])
def test_a_load_on_a_gpu_that_does_not_tell(memory: GpuMemory) -> None:
    with pytest.raises(UnavailableError) as caught:
        load(memory, BOTH[:1], {0: 1.0})
    assert str(caught.value) == (
        "model 'm' version 1 is not loaded on GPU 0: --model-load-gpu-limit=0:1, and how much of its memory is in use "
        "is not known (it needs the package nvidia-ml-py)"
    )


def test_a_load_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(gpu_memory, "ANSWER_S", 0.01)
    monkeypatch.setattr("shoal.supervisor.memory.measuring.LAST_S", 0.01)
    monkeypatch.setattr(Nvml, "nvmlDeviceGetHandleByUUID", lambda _self, _uuid: answers.wait() and "gpu_0")
    with pytest.raises(UnavailableError, match="is not known"):
        load(GpuMemory(Nvml(gpu_0=1)), BOTH[:1], {0: 1.0})
    answers.set()


def test_what_a_gpu_has_in_use() -> None:
    memory, loop = GpuMemory(Nvml(gpu_0=3)), EventLoop()
    use = memory.use_of(GPUS[0], loop)
    loop.after(use, loop.stop)
    loop.run()
    assert use.result() == MemoryUse(3 << 20, 1000 << 20)
    memory.close()
