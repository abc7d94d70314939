"""The entry file of a worker process, which serves one model instance: it joins the supervisor, pins itself to cores,
loads and warms up the model, maps the shared memory, and runs the loop.

If instances share a process, the first runs in its main thread; each other instance gets a thread once the model is
loaded, and goes through the same steps there, with a connection of its own (instance_threads.py).

A worker is forked by a zygote, or started as `python -m shoal.workers.worker`; all settings come over the control
socket. The process exits with 0 after StopWorker or a failed load that it has reported, and at once when the supervisor
has gone or this process has lost its GPU.
"""

import faulthandler
import logging
import os
import sys
from typing import TYPE_CHECKING, TypeAlias

from shoal import control, fault, log
from shoal.control import GONE, Channel
from shoal.errors import InternalError, ShoalError
from shoal.messages.from_worker import MemoryMapped, ModelIOFound, ModelLoaded, WorkerConnected
from shoal.messages.message import Kinds, M
from shoal.messages.shared import Refused
from shoal.messages.to_worker import ConfigFinished, LoadModel, MemoryGranted, StopWorker
from shoal.model_config import sequences
from shoal.model_config.determinism import batch_drift_share, padded_rows
from shoal.model_config.gpu_tensors import NO_GPU
from shoal.model_config.messages import Config
from shoal.model_config.python_backends import runs_on
from shoal.model_config.signature import Signature
from shoal.placement import format_cores
from shoal.process import (
    EXIT_DEVICE_LOST,
    die_with_parent,
    give_forks_default_signals,
    set_title,
    take_group_signals,
    trim_heap,
)
from shoal.shm.doorbell import Doorbell
from shoal.shm.segment import Segment, SegmentView
from shoal.workers import backends
from shoal.workers.backends.backend import Backend, BackendModel, BatchedBackend, Device
from shoal.workers.faults import DeviceLostError
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.instance_threads import InstanceThreads
from shoal.workers.loop import Loop
from shoal.workers.memory import Memory
from shoal.workers.metrics_reporter import report_metrics
from shoal.workers.oversize import WorkerOversizeBlocks
from shoal.workers.padding import PaddedBatches, PaddingMetrics
from shoal.workers.plans import OutputLayouts
from shoal.workers.response_sender import OpenBatches
from shoal.workers.sequences import SequenceTensors
from shoal.workers.unreadable import explained
from shoal.workers.warmup import warm_up

if TYPE_CHECKING:
    from shoal.workers.batch_drift import BatchDriftAuditor

# Not __name__, which is __main__ if the worker is started with -m: the log is configured for names below shoal.
_log = logging.getLogger("shoal.workers.worker")


#: The memory of each instance that this process serves. A process that the model forks must leave it (`Memory.leave`).
#: Changed by `serve`. A function registered with `os.register_at_fork` for each would keep the memory until the end.
_mapped: set[Memory] = set()


def _leave_memory() -> None:
    for memory in _mapped:
        memory.leave()


def main() -> int:
    """Run a worker from start to end. Returns its exit status."""
    die_with_parent()
    faulthandler.enable()
    fault.install("worker")
    take_group_signals()
    give_forks_default_signals()
    os.register_at_fork(after_in_child=_leave_memory)
    try:
        with control.join(WorkerConnected(int(os.environ["SHOAL_INSTANCE"]))) as channel:
            serve(channel)
    except GONE:
        return 1  # the supervisor is gone, so no client waits for answers
    except DeviceLostError:
        os._exit(EXIT_DEVICE_LOST)  # at once: frameworks that clean up after a lost GPU abort or hang
    return 0


def serve(channel: Channel, first: Backend | None = None) -> None:
    """Serve from the LoadModel message to StopWorker. Raises EOFError when the supervisor has gone, DeviceLostError
    when the GPU is lost.

    `first` is the backend of the process's first instance if this thread serves another instance; None for the first.
    """
    order = _receive(channel, LoadModel)
    if order is None:
        return
    instance_name, process_cores = order.instance_name, tuple(order.process_cores)
    if first is None:
        log.describe("worker", model=order.name, version=str(order.version), instance=instance_name)
        log.configure(**order.log)
    device = Device(order.kind, order.device_id, tuple(order.cores), order.log.get("log_verbose", 0), process_cores)
    pin(instance_name, device, order.gpu, is_first=first is None)
    loaded = _load(channel, order, device, first)
    if loaded is None:
        return
    if process_cores:
        os.sched_setaffinity(0, device.cores)  # only this thread: the framework's threads serve all instances
    backend, signature, tensors, auditor = loaded
    reporter = report_metrics(channel) if first is None else None
    granted = _receive(channel, MemoryGranted)
    if granted is not None:
        log.configure(**granted.log)
        memory = map_memory(granted, WorkerOversizeBlocks(channel))
        _mapped.add(memory)
        channel.send(MemoryMapped())
        if order.gpu_pool_nbytes and auditor is None:  # an auditor needs answers in host memory
            memory.keep_on_gpu(pool := GpuPool(order.gpu, order.gpu_pool_nbytes))
            backend.keep_outputs_on_gpu(pool, memory.cuda_regions)
        gpu = order.gpu if order.kind == "KIND_GPU" else NO_GPU
        open_batches = OpenBatches(memory, order.execution_timeout_ms)
        loop = Loop(
            backend, signature, instance_name, memory, tensors, open_batches,
            may_run_again=order.may_run_again, gpu=gpu, spin_ns=order.spin_ns,
        )  # fmt: skip
        loop.auditor = auditor
        threads = InstanceThreads(lambda channel: serve(channel, backend))
        loop.start_instance = threads.start
        try:
            loop.run(channel, reporter)
        finally:
            _mapped.discard(memory)
        threads.join()
    backend.unload()
    if reporter is not None:
        reporter.flush()


def pin(instance_name: str, device: Device, gpu: int = 0, *, is_first: bool = True) -> None:
    """Restrict this thread, and threads that it will start, to the cores of the process's instances, and show the cores
    in the log and, for the first instance, in the process's title; `gpu` is the server's number of the GPU."""
    process_cores = device.process_cores or device.cores
    os.sched_setaffinity(0, process_cores)
    cores, on_gpu = format_cores(device.cores), f"GPU {gpu}" if device.kind == "KIND_GPU" else ""
    if is_first:
        shared = ", shared" if device.process_cores else ""
        set_title(f"worker {instance_name} ({on_gpu or f'CPU {format_cores(process_cores)}'}{shared})")
    where = on_gpu or f"CPU {cores}"
    _log.info(
        "worker %s (%s) is pinned to cores %s and runs %d threads", instance_name, where, cores, len(device.cores)
    )


#: A loaded model: its backend, its signature, the tensors of a sequence batcher if it has one, and the auditor if its
#: batch drift is measured.
Loaded: TypeAlias = tuple[Backend, Signature, SequenceTensors | None, "BatchDriftAuditor | None"]


def load(channel: Channel, order: LoadModel, device: Device, first: Backend | None = None) -> Loaded | None:
    """Load and warm up the model of `order`; if `first` is given, share the model that this backend of the process's
    first instance has loaded. Returns None if StopWorker comes meanwhile. Raises whatever the backend or the channel
    raises."""
    config = order.config
    backend = backends.create(runs_on(config)) if first is None else first.of_another_thread()
    if not order.is_config_final:
        model_io = backend.describe(_model(order, config), device)
        channel.send(ModelIOFound(*model_io))
        finished = _receive(channel, ConfigFinished)
        if finished is None:
            return None
        config = finished.config
    model = _model(order, config)
    backend.report_refusal_by(lambda error: _refuse(channel, error))
    backend.load(model, device)
    backend.pad_batches(padded_rows(config))
    tensors = SequenceTensors(config, model.version_dir) if "sequence_batching" in config else None
    warm_up(backend, model, Signature.from_config(sequences.with_sequence_tensors(config)))
    signature = Signature.from_config(config)
    if isinstance(backend, BatchedBackend) and isinstance(backend.ragged, PaddedBatches):
        backend.ragged.counts = PaddingMetrics(model.name, model.version)
    if not (share := batch_drift_share(config)):
        return backend, signature, tensors, None
    from shoal.workers.batch_drift import BatchDriftAuditor, DriftMetrics  # here: most models have no auditor

    counts = DriftMetrics(model.name, model.version)
    auditor = BatchDriftAuditor(backend, OutputLayouts(signature), model.instance_name, share, counts)
    return backend, signature, tensors, auditor


def _load(channel: Channel, order: LoadModel, device: Device, first: Backend | None) -> Loaded | None:
    """Load the model and report the outcome to the supervisor; returns None if it failed or StopWorker came."""
    try:
        loaded = load(channel, order, device, first)
    except GONE:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model file provokes is the reason of its failure
        if not isinstance(error, ShoalError):
            _log.error("model '%s' cannot be loaded", order.name, exc_info=error)
            error = InternalError(f"{type(error).__name__}: {error}")
        _refuse(channel, explained(error, order.model_file))
        return None
    if loaded is not None:
        trim_heap()  # gives back 2 MiB after the load of a small ONNX model
        channel.send(ModelLoaded(loaded[0].has_ready_check))
    return loaded


def _refuse(channel: Channel, error: ShoalError) -> None:
    channel.send(Refused(error.wire, str(error)))


def _model(order: LoadModel, config: Config) -> BackendModel:
    if runs_on(config) != "python":  # a Python model gets the configuration as written
        config = sequences.with_sequence_tensors(config)
    return BackendModel(
        name=order.name,
        version=order.version,
        instance_name=order.instance_name,
        version_dir=order.version_dir,
        file=order.model_file,
        config=config,
        backend_config=order.backend_config,
    )


def map_memory(granted: MemoryGranted, oversize: WorkerOversizeBlocks) -> Memory:
    """The worker's shared memory, mapped from the descriptors in `granted`, which it takes over."""
    segment, link = Segment.attach(granted.segment), SegmentView.attach(granted.link)
    return Memory(segment, link, Doorbell(granted.bell), Doorbell(granted.batcher_bell), oversize)


def _receive(channel: Channel, kind: type[M]) -> M | None:
    """The supervisor's next message, which must be of this type; None if it is StopWorker instead."""
    message, _ = channel.receive(Kinds[M | StopWorker](kind, StopWorker))
    return None if isinstance(message, StopWorker) else message


if __name__ == "__main__":
    sys.exit(main())
