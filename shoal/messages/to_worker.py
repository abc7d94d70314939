"""What the supervisor sends a worker (workers/worker.py, workers/loop.py).

    LoadModel ─► [ModelIOFound ─► ConfigFinished] ─► ModelLoaded ─► MemoryGranted ─► MemoryMapped ─► all others
    StopWorker at any time: a worker that loads ends at once, one that works when it has answered what it has taken

A worker obeys between two batches, or while it waits for memory; so announcements wait for it only briefly, if at all.
It acknowledges what has a sequence number; what it answers is in from_worker.py.
"""

from typing import Any

from shoal.messages.message import Fd, Message
from shoal.messages.shared import (
    LogSettings,
)


class LoadModel(Message):
    """The worker loads this model, on this device."""

    name: str
    version: int
    version_dir: str
    model_file: str  # "": found by the backend
    config: dict[str, Any]
    is_config_final: bool  # False: the worker first reports the tensors of the model's file
    may_run_again: bool
    instance_name: str
    kind: str  # KIND_CPU, KIND_GPU
    device_id: int  # of the GPU, as the worker's process numbers those that it sees
    gpu: int  # the same GPU, as the server numbers it
    cores: list[int]
    backend_config: dict[str, str]
    log: LogSettings


class ConfigFinished(Message):
    """The model's configuration is complete; answers ModelIOFound."""

    config: dict[str, Any]


class MemoryGranted(Message):
    """The worker's place in the star, once its model is loaded; answered by MemoryMapped."""

    log: LogSettings  # in force now: a worker that loads hears of no change
    segment: Fd  # its own, sealed and writable
    link: Fd  # written by the batcher
    bell: Fd  # its own
    batcher_bell: Fd  # the batcher's, of this worker


class StopWorker(Message):
    """The worker unloads its model and ends, after what it has taken."""


class ReportMetrics(Message):
    """The worker reports what has changed in its model's metrics before it acknowledges this."""


class CheckReady(Message):
    """The worker asks its model whether it is ready; ReadyAnswered answers."""
