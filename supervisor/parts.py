"""The parts of the supervisor in three groups, and what each part is made of. Runs in the supervisor.

    Foundation       the loop, the control socket, the star, zygotes, the machine: all other parts stand on these
    Administration   repositories and models, and what loads, scales, registers, rolls out and shadows them
    Observation      traces, recordings and the log

The constructors only assign: nothing begins before the supervisor's phases (supervisor.py).
"""

import os
import random
import time
from collections.abc import Callable, Mapping

from shoal import metric_families as families
from shoal.cloud_url import CloudUrl
from shoal.control import Listener
from shoal.messages.shared import LogSettings
from shoal.nvml import load_nvml
from shoal.options import ServerOptions
from shoal.placement import Machine
from shoal.repository.slots import Slot
from shoal.shm.counters import RowView
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.memory.gpu_memory import GpuMemory
from shoal.supervisor.memory.process_memory import ProcessMemory
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.model_control import ModelControl
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.rate_limits import RateLimits
from shoal.supervisor.models.readiness import Readiness
from shoal.supervisor.models.recycling import Recycling
from shoal.supervisor.models.registrations import Registrations
from shoal.supervisor.models.rollouts import make_rollouts
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.models.scaling import Scaling
from shoal.supervisor.models.workflows import Workflows
from shoal.supervisor.processes.mps import Mps, mps_directory
from shoal.supervisor.processes.repository import RepositoryPoller
from shoal.supervisor.processes.zygotes import Zygotes
from shoal.supervisor.questions.custom_metrics import CustomMetrics
from shoal.supervisor.questions.log_settings import LogControl
from shoal.supervisor.questions.recording import RecordingControl
from shoal.supervisor.questions.shadow import ShadowControl, shadow_file
from shoal.supervisor.questions.trace_settings import TraceControl
from shoal.tracer.command_line import understand


class Foundation:
    """The event loop, the control socket and its address, the star and the machine."""

    def __init__(self, options: ServerOptions, log_settings: LogSettings, machine: Machine) -> None:
        self.options, self.log_settings, self.machine = options, log_settings, machine
        self.loop = EventLoop()
        self.control = Listener.create()
        self.address = self.control.address
        self.roster = Roster(self.loop)
        descriptors = Descriptors(lambda: self.roster.num_coming_up)
        self.star = Star(options, log_settings, self.loop, descriptors=descriptors)
        self.zygotes = Zygotes(self.loop, self.address)
        nvml = load_nvml() if machine.gpus else None
        self.gpu_memory = GpuMemory(nvml)
        self.memory = ProcessMemory(nvml, [gpu.uuid for gpu in machine.gpus])
        self.mps = Mps(self.loop, mps_directory() if options.cuda_mps else None)
        self.metrics = CustomMetrics({family.name for family in families.ALL})
        self.readiness = Readiness(self.star.workers, self.loop)
        self.context = InstanceContext(
            self.loop, self.zygotes, self.star, options, self.address, log_settings, machine, self.metrics,
            self.readiness, gpu_memory=self.gpu_memory, rate_limits=RateLimits(options.rate_limits),
            mps_environment=self.mps.environment,
        )  # fmt: skip

    def counters(self, row: int) -> RowView:
        return self.star.counter_memory.read().read(row)


class Administration:
    """Repositories, models and all that changes them. `on_models_changed` is called after each announcement."""

    def __init__(
        self,
        foundation: Foundation,
        slots: Mapping[CloudUrl, Slot],
        store_slot: Slot | None,
        on_models_changed: Callable[[], None],
    ) -> None:
        loop, star, options, address = foundation.loop, foundation.star, foundation.options, foundation.address
        log_settings, gpus = foundation.log_settings, foundation.machine.gpu_ids("torchserve")
        self.repository = RepositoryPoller(loop, options, address, log_settings, slots, store_slot, gpus)
        files = self.repository.discard, self.repository.forget
        self.models = Models(foundation.context, foundation.roster, on_models_changed, *files)
        self.models.look_at = self.repository.look_at
        has_snapshots = options.store is not None and bool(options.store.snapshot_directory)
        self.registrations = Registrations(self.repository, self.models, has_snapshots=has_snapshots)
        is_registered = self.registrations.is_registered
        self.model_control = ModelControl(options, self.repository, self.models, is_registered)
        self.workflows = Workflows(self.repository, self.registrations)
        self.scaling = Scaling(self.models, foundation.counters, time.monotonic_ns, foundation.memory)
        self.recycling = Recycling(self.models, lambda most: random.randint(0, most))
        self.shadows = ShadowControl(star, address, self.models, shadow_file(options))
        self.rollouts = make_rollouts(star, self.models, is_registered, self.shadows.figure)


class Observation:
    """Traces, recordings and the log."""

    def __init__(self, foundation: Foundation, administration: Administration) -> None:
        star, options, address = foundation.star, foundation.options, foundation.address
        self.tracing = TraceControl(star, address, understand(options.trace_config, os.environ))
        self.recording = RecordingControl(star, address, options)
        self.ring_readers = administration.shadows.comparator, self.recording.recorder
        others = administration.repository, self.tracing.tracer, *self.ring_readers
        self.log_control = LogControl(foundation.log_settings, star, *others)
