"""The parts of the supervisor that every model instance uses, in one value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.messages.shared import LogSettings
from shoal.options import ServerOptions
from shoal.placement import Machine
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.gpu_memory import GpuMemory
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.rate_limits import RateLimits
from shoal.supervisor.models.readiness import Readiness
from shoal.supervisor.processes.gpu_quarantine import GpuQuarantine
from shoal.supervisor.processes.oom_kills import OomKills
from shoal.supervisor.processes.zygotes import Zygotes
from shoal.supervisor.questions.custom_metrics import CustomMetrics


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """The parts of the supervisor that every model instance uses."""

    loop: EventLoop
    zygotes: Zygotes
    star: Star
    options: ServerOptions
    control_address: str
    log_settings: LogSettings
    machine: Machine
    metrics: CustomMetrics
    readiness: Readiness
    oom_kills: OomKills = field(default_factory=OomKills)
    gpu_memory: GpuMemory = field(default_factory=GpuMemory)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    quarantine: GpuQuarantine = field(default_factory=GpuQuarantine)
    mps_environment: Mapping[str, str] = field(default_factory=dict)  # variables for workers on GPUs, with --cuda-mps
