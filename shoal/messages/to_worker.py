"""Messages from the supervisor to a worker (workers/worker.py, workers/loop.py).

    LoadModel ─► [ModelIOFound ─► ConfigFinished] ─► ModelLoaded ─► MemoryGranted ─► MemoryMapped ─► all others
    StopWorker at any time: a worker that loads ends at once, one that works when it has answered its batches

A worker applies messages between two batches, or while it waits for memory; so announcements wait for it only briefly,
if at all. It acknowledges messages that have a sequence number; its answers are in from_worker.py.
"""

from collections.abc import Sequence

from shoal.messages.message import Fd, Message
from shoal.messages.shared import Config, LogSettings


class LoadModel(Message):
    """The model that the worker is to load, and the device."""

    name: str
    version: int
    version_dir: str
    model_file: str  # "": the backend finds it
    config: Config
    is_config_final: bool  # False: the worker first sends the tensors of the model's file
    may_run_again: bool
    instance_name: str
    kind: str  # KIND_CPU, KIND_GPU, KIND_MODEL
    device_id: int  # the GPU's number among those that the worker's process sees
    gpu: int  # the server's number of that GPU
    gpu_pool_nbytes: int  # most bytes of outputs that stay on the GPU for other models; 0: none do
    cores: list[int]
    backend_config: dict[str, str]
    log: LogSettings
    execution_timeout_ms: int = 0  # 0: no limit
    spin_ns: int = 0  # the longest spin before a sleep; 0: the worker sleeps at once
    process_cores: Sequence[int] = ()  # cores of all instances that share the process; empty: there is one instance


class ConfigFinished(Message):
    """The model's completed configuration; answers ModelIOFound."""

    config: Config


class MemoryGranted(Message):
    """The worker's place in the star, once its model is loaded; answered by MemoryMapped."""

    log: LogSettings  # in force now; a worker that loads is not sent changes
    segment: Fd  # the worker's own, sealed and writable
    link: Fd  # written by the batcher
    bell: Fd  # wakes the worker
    batcher_bell: Fd  # the bell that the worker rings at the batcher


class StopWorker(Message):
    """The worker, or the thread of an instance that shares its process, unloads its model and ends, after answering
    the batches it has."""


class StartInstance(Message):
    """The worker, which is up, starts a thread for another instance of its model; the thread connects as a worker."""

    instance: int


class PinInstance(Message):
    """The thread of an instance that shares its process is to run on these cores."""

    cores: list[int]


class CudaRegionGone(Message):
    """A client has unregistered its memory on a GPU: the worker closes the handle."""

    number: int  # the number of the registration


class ReportMetrics(Message):
    """The worker sends changes of its model's metrics before it acknowledges this."""


class CheckReady(Message):
    """The worker asks its model whether it is ready; answered by ReadyAnswered."""
