"""process_memory.py: what the kernel says of real processes, and a fake library of GPUs."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.open_files import num_open
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory import process_memory
from shoal.supervisor.memory.process_memory import MemoryFigures, ProcessMemory, total
from tests.supervisor.clock import ClockLoop
from tests.supervisor.memory.test_gpu_memory import NVMLError

US = os.getpid()


class Nvml:
    """Two GPUs: this process has memory on both, by itself on one, and as a client of MPS on the other."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.is_healthy = threading.Event()

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.is_healthy.wait()
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        if handle == "GPU-2":
            return []
        return [SimpleNamespace(pid=US, usedGpuMemory=5 << 20), SimpleNamespace(pid=1 << 30, usedGpuMemory=7)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: str) -> list[Any]:
        if handle == "GPU-1":
            raise NVMLError("Not Supported")
        return [SimpleNamespace(pid=US, usedGpuMemory=9 << 20), SimpleNamespace(pid=US, usedGpuMemory=None)]


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


@pytest.fixture
def memory(nvml: Nvml) -> Iterator[ProcessMemory]:
    made = ProcessMemory(nvml, ["GPU-1", "GPU-2"])
    yield made
    nvml.is_healthy.set()
    made.close()


def measured(memory: ProcessMemory, *pids: int) -> dict[int, MemoryFigures]:
    loop = EventLoop()
    found = loop.begin(memory.measure(pids, loop))
    found.add_done_callback(lambda _: loop.stop())
    loop.run()
    return found.result()


def test_a_process_has_its_share_of_the_hosts_memory_and_what_it_has_on_each_gpu(
    memory: ProcessMemory, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "ANSWER_S", 60.0)
    nvml.is_healthy.set()
    figures = measured(memory, US, US, 0)[US]
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert 1 << 20 < figures.host_nbytes <= 2 * resident
    assert figures.gpu_nbytes == {"GPU-1": 5 << 20, "GPU-2": 9 << 20}


def test_a_gpu_that_does_not_answer_delays_no_figure_and_is_asked_once(
    memory: ProcessMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "ANSWER_S", 0.2)
    loop = EventLoop()

    async def twice() -> list[dict[int, MemoryFigures]]:
        return [await memory.measure([US], loop) for _ in range(2)]

    found = loop.begin(twice())
    found.add_done_callback(lambda _: loop.stop())
    loop.run()
    assert [each.get(US, MemoryFigures(0, {})).gpu_nbytes for each in found.result()] == [{}, {}]
    assert not memory._gpu_thread._questions


def test_a_host_and_a_gpu_that_do_not_answer_delay_figures_once(
    memory: ProcessMemory, nvml: Nvml, clock: ClockLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "_pss", lambda _pids: nvml.is_healthy.wait() and {})
    before_s = clock.time()
    assert clock.run(memory.measure([US], EventLoop(clock))) == {}
    assert clock.time() - before_s == pytest.approx(process_memory.ANSWER_S)
    nvml.is_healthy.set()
    clock.until(lambda: memory._num_pending == 0 and memory._gpu is not None and memory._gpu.done())


def test_a_thread_that_cannot_be_started_costs_one_question_and_no_descriptor(
    memory: ProcessMemory, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process_memory, "ANSWER_S", 60.0)
    nvml.is_healthy.set()
    loop = EventLoop()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        before = num_open()
        found = loop.begin(memory.measure([US], loop))
        found.add_done_callback(lambda _: loop.stop())
        loop.run()
        assert found.result() == {}
        assert num_open() == before
    assert US in measured(memory, US)


def test_processes_that_have_ended_are_missing(memory: ProcessMemory, nvml: Nvml) -> None:
    nvml.is_healthy.set()
    assert measured(memory, 0, 1 << 30) == {}


def test_too_many_questions_get_no_answer(memory: ProcessMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "MAX_PENDING", 0)
    assert measured(memory, US) == {}


def test_the_figures_of_several_processes() -> None:
    each = [MemoryFigures(3, {"a": 1}), MemoryFigures(4, {"a": 2, "b": 5})]
    assert total(each) == MemoryFigures(7, {"a": 3, "b": 5})
    assert total([]) == MemoryFigures(0, {})
