"""What every instance needs of the supervisor, in one hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shoal.options import ServerOptions
from shoal.placement import Machine, Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.descriptors import Descriptors
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.gpu_memory import GpuMemory
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.rate_limits import RateLimits
from shoal.supervisor.models.readiness import Readiness
from shoal.supervisor.processes.oom_kills import OomKills
from shoal.supervisor.processes.zygotes import Zygotes
from shoal.supervisor.questions.custom_metrics import CustomMetrics

if TYPE_CHECKING:
    from shoal.supervisor.models.instance import Instance
    from shoal.supervisor.models.instance_state import Listener


class Enrolment(Protocol):
    """Who knows all instances (roster.py)."""

    @property
    def num_coming_up(self) -> int:
        """Instances that are not up, and may come up."""
        ...

    def enrol(
        self, version: ModelVersion, placements: Sequence[Placement], host: "Host", listener: "Listener"
    ) -> "list[Instance]":
        """New instances. Raises ShoalError, and there are none, where one cannot be."""
        ...

    def dismiss(self, instance: "Instance") -> None:
        """It has ended for good."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """What every instance needs of the supervisor."""

    loop: EventLoop
    zygotes: Zygotes
    star: Star
    options: ServerOptions
    control_address: str
    log_settings: dict[str, Any]
    machine: Machine
    roster: Enrolment
    metrics: CustomMetrics
    readiness: Readiness
    oom_kills: OomKills = field(default_factory=OomKills)
    gpu_memory: GpuMemory = field(default_factory=GpuMemory)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    descriptors: Descriptors = field(default_factory=Descriptors)
