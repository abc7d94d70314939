"""The memory that the end of a worker gives back to its GPU, measured and logged. Runs in the supervisor.

Measured as what the whole GPU has in use before and after, since the driver knows a container's processes by other
numbers: what others take or give back meanwhile is in the figure. Asked in a thread of its own, since a sick GPU may
let a question wait for long, and nothing waits for these answers.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from shoal.placement import Gpu, Placement

_log = logging.getLogger(__name__)

_MIB = 1 << 20
#: How long the end of the server waits for what is to be said of its last workers (ours).
_LAST_S = 1.0


class GpuMemory:
    """Asks NVIDIA's library; without it, nothing is measured."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        # Changed by the loop.
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Changed in the thread: the number of an instance → its GPU, and bytes in use there when it was told to end.
        self._before: dict[int, tuple[Gpu, int]] = {}

    def leaving(self, number: int, placement: Placement) -> None:
        """This instance's worker, which runs, is being told to end."""
        gpu = placement.gpu
        if gpu is not None and self._nvml is not None:
            self._ask(lambda: self._note(number, gpu))

    def left(self, number: int, placement: Placement) -> None:
        """A worker has ended. One that was not told to is not measured: what it had is unknown."""
        if self._thread is not None:
            self._ask(lambda: self._log_returned(number, placement))

    def close(self) -> None:
        """Nothing more will be asked. Waits for what was, but not for a GPU that does not answer."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(_LAST_S)

    def _ask(self, question: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu memory", daemon=True)
            self._thread.start()
        self._questions.put(question)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            question()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _note(self, number: int, gpu: Gpu) -> None:
        used = self._used_bytes(gpu)
        if used is not None:
            self._before.setdefault(number, (gpu, used))

    def _log_returned(self, number: int, placement: Placement) -> None:
        if number not in self._before:
            return
        gpu, before = self._before.pop(number)
        after = self._used_bytes(gpu)
        if after is None:
            return
        returned = max(0, before - after)
        for other, (its_gpu, its_before) in self._before.items():
            if its_gpu.uuid == gpu.uuid:  # what this one has returned is not theirs
                self._before[other] = its_gpu, its_before - returned
        _log.info(
            "worker %s has returned %d MiB on GPU %d, where %d MiB are still in use",
            placement.instance_name, returned // _MIB, gpu.id, after // _MIB,
        )  # fmt: skip

    def _used_bytes(self, gpu: Gpu) -> int | None:
        """None where it does not tell."""
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).used)
        except nvml.NVMLError as error:
            _log.warning("GPU %d does not tell how much of its memory is in use: %s", gpu.id, error)
            return None
