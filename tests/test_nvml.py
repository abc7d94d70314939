"""shoal/nvml.py: what the library tells; where there is none, a library that the test plays."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from shoal import nvml
from shoal.nvml import Gpus, load_nvml


class NVMLError(Exception):
    """As the library raises it."""


class Nvml:
    """Two GPUs, of which the second knows nothing of its power."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.energy_mj = 5_000

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=50 * (1 - handle))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1000 + handle, used=10 + handle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._known(handle, 70_500)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self._known(handle, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self._known(handle, self.energy_mj)

    def _known(self, handle: int, value: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return value


def test_each_gpu_tells_what_it_can() -> None:
    nvml = Nvml()
    gpus = Gpus(nvml)
    nvml.energy_mj = 7_500
    assert gpus.read() == [
        {
            "uuid": "GPU-0", "utilization": 0.5, "memory_total_bytes": 1000, "memory_used_bytes": 10,
            "power_usage_w": 70.5, "power_limit_w": 700.0, "energy_j": 2.5,
        },
        {"uuid": "GPU-1", "utilization": 0.0, "memory_total_bytes": 1001, "memory_used_bytes": 11},
    ]  # fmt: skip


def test_a_gpu_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Lost(Nvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            return index or self._known(1, 0)

    assert [gpu["uuid"] for gpu in Gpus(Lost()).read()] == ["GPU-1"]
    assert caplog.messages == ["no metrics of the GPU that NVIDIA's library has as number 0: Not Supported"]
    monkeypatch.setattr(Nvml, "nvmlDeviceGetCount", lambda self: self._known(1, 0))
    assert Gpus(Nvml()).read() == []


def test_without_the_library_there_are_none() -> None:
    assert Gpus(None).read() == []


def test_a_package_without_a_driver_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError("Driver Not Loaded")

    module = SimpleNamespace(NVMLError=NVMLError, nvmlInit=refuse)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert load_nvml() is None


def test_a_missing_package_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml() is None


def test_the_library_is_looked_for_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(nvml, "LIBRARY", "/no/library.so.1")
    assert not nvml.has_library()
    monkeypatch.setattr(nvml, "LIBRARY", "libc.so.6")  # one that can be loaded
    assert nvml.has_library()


@pytest.mark.gpu
def test_a_real_gpu_has_all_figures() -> None:
    (first, *_) = Gpus(load_nvml()).read()
    assert first["uuid"].startswith("GPU-")
    assert 0 <= first["utilization"] <= 1
    assert 0 < first["memory_used_bytes"] < first["memory_total_bytes"]
    assert first["power_usage_w"] > 0
