"""The memory of worker processes: their share of the host's, and of each GPU's. Measured on request, in a thread.

A process's share of the host's memory is its proportional set size, as the kernel counts it: pages that several
processes map, as zygotes' children do, count in equal parts, so that the figures of all processes add up. The memory on
a GPU is what NVIDIA's library says of the process; the library says nothing of a process that it knows by another
number, as in most containers. Runs in the supervisor.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.supervisor.event_loop import EventLoop, Future, first
from shoal.supervisor.memory.measuring import MeasuringThread

#: How long a question waits for its figures (ours): a scrape of /metrics has 2 s, in which it asks models for their
#: metrics, too.
ANSWER_S = 1.0
#: Most questions about the host's memory that wait for an answer; further ones get none (ours).
MAX_PENDING = 64


class MemoryFigures(NamedTuple):
    """The memory of one process, or of several, in bytes; on GPUs by their UUIDs, as far as it is known."""

    host_nbytes: int
    gpu_nbytes: dict[str, int]


class ProcessMemory:
    """Measures processes' memory."""

    def __init__(self, nvml: Any = None, gpus: Collection[str] = ()) -> None:
        """`gpus` are the UUIDs of the server's GPUs, of which `nvml`, NVIDIA's library, is asked."""
        self._nvml = nvml
        self._gpus = gpus
        self._host_thread, self._gpu_thread = MeasuringThread("memory"), MeasuringThread("memory of GPUs")
        # Changed by measure: questions without an answer, and the last one about GPUs, which is about all processes.
        self._num_pending = 0
        self._gpu: Future[dict[int, dict[str, int]]] | None = None

    async def measure(self, pids: Iterable[int], loop: EventLoop) -> dict[int, MemoryFigures]:
        """The figures of processes by pid; those that have ended, or are not known within ANSWER_S, are missing."""
        wanted = sorted({pid for pid in pids if pid})
        if not wanted or self._num_pending >= MAX_PENDING:
            return {}
        try:
            host = self._host_thread.answer(lambda: _pss(wanted), loop)
            self._num_pending += 1
            loop.after(host, self._answered)
            if self._nvml is not None and (self._gpu is None or self._gpu.done()):
                self._gpu = self._gpu_thread.answer(self._on_gpus, loop)
        except OSError:
            return {}  # the system is short of descriptors or threads: requests need them more
        gpu = self._gpu
        end_s = loop.now_s() + ANSWER_S
        await first(host, limit_s=ANSWER_S)
        if gpu is not None:
            await first(gpu, limit_s=max(0.0, end_s - loop.now_s()))
        on_gpus = gpu.result() if gpu is not None and gpu.done() else {}
        found = host.result() if host.done() else {}
        return {pid: MemoryFigures(nbytes, on_gpus.get(pid, {})) for pid, nbytes in found.items()}

    def _answered(self) -> None:
        self._num_pending -= 1

    def close(self) -> None:
        self._host_thread.close()
        self._gpu_thread.close()

    def _on_gpus(self) -> dict[int, dict[str, int]]:
        """By pid and UUID, the bytes that processes have on GPUs. Called in the thread."""
        nvml = self._nvml
        found: dict[int, dict[str, int]] = {}
        for uuid in self._gpus:
            for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
                try:
                    running = getattr(nvml, name)(nvml.nvmlDeviceGetHandleByUUID(uuid))
                except (nvml.NVMLError, AttributeError):  # unknown for this GPU or part, or to this library
                    continue
                for each in running:
                    if each.usedGpuMemory is not None:
                        found.setdefault(int(each.pid), {})[uuid] = int(each.usedGpuMemory)
        return found


def _pss(pids: Iterable[int]) -> dict[int, int]:
    return {pid: nbytes for pid in pids if (nbytes := share_nbytes(pid, "Pss:")) is not None}


def share_nbytes(pid: int, *parts: str) -> int | None:
    """The bytes of these parts of a process's proportional set size, as smaps_rollup names them; None where the process
    has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(parts))


def total(figures: Iterable[MemoryFigures]) -> MemoryFigures:
    """The sum of the figures of several processes."""
    host_nbytes, gpu_nbytes = 0, dict[str, int]()
    for each in figures:
        host_nbytes += each.host_nbytes
        for uuid, nbytes in each.gpu_nbytes.items():
            gpu_nbytes[uuid] = gpu_nbytes.get(uuid, 0) + nbytes
    return MemoryFigures(host_nbytes, gpu_nbytes)
