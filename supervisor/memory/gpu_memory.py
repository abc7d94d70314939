"""GPU memory: what is in use, and what the end of a worker gives back, measured and logged. Runs in the supervisor.

What a worker gives back is the difference of what the whole GPU has in use before and after, since the driver knows a
container's processes by other numbers; memory that other processes take or free meanwhile is counted, too. NVIDIA's
library is called in a thread, since a sick GPU may answer late; only a load under --model-load-gpu-limit waits for an
answer.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from shoal.errors import UnavailableError
from shoal.placement import Gpu, Placement
from shoal.supervisor.event_loop import EventLoop, Future, first, resolve
from shoal.supervisor.memory.measuring import MeasuringThread

_log = logging.getLogger(__name__)

_MIB = 1 << 20
#: How long a load waits for a GPU's figures (ours).
ANSWER_S = 10.0


class MemoryUse(NamedTuple):
    """The memory of a whole GPU, whatever uses it."""

    used_nbytes: int
    total_nbytes: int


class GpuMemory:
    """Measures GPU memory before and after the end of each worker; without NVIDIA's library, nothing is measured."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._thread = MeasuringThread("gpu memory")
        # Changed in this object's thread: number of an instance → its GPU, and bytes in use before its worker ended.
        self._before: dict[int, tuple[Gpu, int]] = {}

    def leaving(self, number: int, placement: Placement) -> None:
        """Note the memory in use on the GPU of an instance whose worker is about to be stopped."""
        gpu = placement.gpu
        if gpu is not None and self._nvml is not None:
            self._thread.ask(lambda: self._note(number, gpu))

    def left(self, number: int, placement: Placement) -> None:
        """Log the memory that an instance's worker has given back; nothing, as it is unknown, where it died unasked."""
        if self._thread.has_started:
            self._thread.ask(lambda: self._log_returned(number, placement))

    def use_of(self, gpu: Gpu, loop: EventLoop) -> "Future[MemoryUse | None]":
        """A future of a GPU's memory; None where the driver does not say, without NVIDIA's library, and where no thread
        can ask. The future stays open as long as the driver does not answer."""
        if self._nvml is not None:
            with suppress(OSError):
                return self._thread.answer(lambda: self._use(gpu), loop)
        unknown: Future[MemoryUse | None] = loop.future()
        resolve(unknown, None)
        return unknown

    def close(self) -> None:
        """End the thread after its pending measurements, or after a second without an answer from a GPU."""
        self._thread.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _note(self, number: int, gpu: Gpu) -> None:
        if (use := self._use(gpu)) is not None:
            self._before.setdefault(number, (gpu, use.used_nbytes))

    def _log_returned(self, number: int, placement: Placement) -> None:
        if number not in self._before:
            return
        gpu, before = self._before.pop(number)
        use = self._use(gpu)
        if use is None:
            return
        returned = max(0, before - use.used_nbytes)
        for other, (its_gpu, its_before) in self._before.items():
            if its_gpu.uuid == gpu.uuid:  # the memory returned now must not be logged for the other instance, too
                self._before[other] = its_gpu, its_before - returned
        _log.info(
            "worker %s has returned %d MiB on GPU %d, where %d MiB are still in use",
            placement.instance_name, returned // _MIB, gpu.id, use.used_nbytes // _MIB,
        )  # fmt: skip

    def _use(self, gpu: Gpu) -> MemoryUse | None:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
            return MemoryUse(int(memory.used), int(memory.total))
        except nvml.NVMLError as error:
            _log.warning("GPU %d does not tell how much of its memory is in use: %s", gpu.id, error)
            return None


async def refuse_full_gpus(
    title: str, placements: Iterable[Placement], limits: Mapping[int, float], memory: GpuMemory, loop: EventLoop
) -> None:
    """Raise UnavailableError if a GPU of these placements is fuller than its limit, or does not say how full it is.

    `limits` are shares from 0 to 1, by the number of the GPU: those of --model-load-gpu-limit. Whatever uses the memory
    counts. To be called before a version's first worker starts: what a model needs is not known before, and workers
    that are started again are not asked.
    """
    gpus = {placement.gpu.id: placement.gpu for placement in placements if placement.gpu is not None}
    for number in sorted(gpus.keys() & limits.keys()):
        answer = memory.use_of(gpus[number], loop)
        await first(answer, limit_s=ANSWER_S)
        use = answer.result() if answer.done() else None
        if use is None:
            raise UnavailableError(
                f"{title} is not loaded on GPU {number}: --model-load-gpu-limit={number}:{limits[number]:g}, and how "
                "much of its memory is in use is not known (it needs the package nvidia-ml-py)"
            )
        if use.used_nbytes > limits[number] * use.total_nbytes:
            in_use = f"{use.used_nbytes // _MIB} of {use.total_nbytes // _MIB} MiB"
            raise UnavailableError(
                f"{title} is not loaded on GPU {number}: {in_use} of its memory are in use, more than "
                f"--model-load-gpu-limit={number}:{limits[number]:g} allows. Unload other models, or raise the limit"
            )
