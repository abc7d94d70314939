"""Every instance of the server: finds a connecting worker's instance, and ends workers over their execution limit.

Runs in the supervisor. Why an instance exists, and to which version it belongs, is decided in served_version.py.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from shoal.messages.to_worker import ReportMetrics
from shoal.model_config.python_backends import python_backend_file
from shoal.placement import Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.repository.scan import model_file
from shoal.supervisor.event_loop import EventLoop, Future
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.instance_state import COMING_UP, InstanceState
from shoal.supervisor.processes.children import running
from shoal.supervisor.processes.hangs import Hangs
from shoal.supervisor.processes.members import Member, Recipient
from shoal.supervisor.processes.stopped_processes import Watched

_log = logging.getLogger(__name__)

#: How long an answer to /metrics waits for models' own metrics (ours): less than the 2 s that a front end waits for
#: all figures of the supervisor (GAUGES_TIMEOUT_S).
METRICS_PATIENCE_S = 1.5


class Roster:
    """All instances by number; a number is never used again."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        self._hangs = Hangs()
        # Changed by enrol and dismiss: the instances by their numbers.
        self._instances: dict[int, Instance] = {}

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._instances.values()))

    @property
    def num_coming_up(self) -> int:
        """The number of instances that are not up, and may come up."""
        done = (InstanceState.UP, InstanceState.STOPPED)
        return sum(each.state not in done for each in self._instances.values())

    def enrol(
        self,
        version: ModelVersion,
        placements: Sequence[Placement],
        context: InstanceContext,
        on_state: Callable[[Instance], None],
    ) -> list[Instance]:
        """Make instances, not started. Raises ShoalError, and makes none, where there are not enough descriptors for
        all, or no model file for one."""
        context.star.descriptors.admit_instances(version.name, len(placements))
        files = [_file_of(version, placement, context) for placement in placements]
        made = [
            Instance(next(self._numbers), version, placement, file, context, on_state)
            for placement, file in zip(placements, files, strict=True)
        ]
        self._instances.update({instance.number: instance for instance in made})
        return made

    def dismiss(self, instance: Instance) -> None:
        self._instances.pop(instance.number, None)

    def join(self, number: int, member: Member) -> None:
        """Hand a worker that has connected to its instance; close the connection of one that is not expected, as of a
        worker that has died since it connected."""
        instance = self._instances.get(number)
        is_starting = instance is not None and instance.state is InstanceState.STARTING
        if instance is None or not is_starting or member.pid != instance.pid or instance.worker.joined.done():
            member.hang_up()
            return
        instance.join(member)

    def report_metrics(self, context: InstanceContext) -> Future[None]:
        """Let workers whose models have metrics of their own report what has changed. The future is done when they
        have, or when one takes too long, as a model that holds its interpreter does: later scrapes do not wait for that
        worker until it has answered."""
        acknowledgements = context.star.acknowledgements
        reporters: list[Recipient] = []
        for instance in self:
            worker = instance.worker.participant
            if worker is not None:
                with contained(instance):
                    worker.member.drain()  # these messages may be the worker's first metrics
                if context.metrics.has_reported(instance.number) and not acknowledgements.is_late(worker.member):
                    reporters.append((worker.member, ReportMetrics()))
        return acknowledgements.announce((), briefly=reporters, patience_s=METRICS_PATIENCE_S)

    def to_be_kept_going(self, front_ends: Iterable[Participant]) -> Iterator[Watched]:
        """The processes that must not stay stopped: the server's own that run no users' code, and workers that are
        coming up, since a load may take minutes. A stopped worker that is up is ended by its execution limit."""
        for child in running():
            if not child.program.runs_model:
                yield Watched(child.pid, f"process '{child.program.role}'", child.signal)
        for instance in self:
            if instance.state in COMING_UP and instance.pid:
                yield Watched(instance.pid, f"the worker of {instance.title}, which loads,", instance.worker.signal)
        for client in front_ends:
            yield Watched(client.member.pid, "a front end", client.member.signal)

    def by_owner(self, owner: int) -> Instance | None:
        """The instance whose worker's memory has this owner id; None where there is none."""
        return next((each for each in self._instances.values() if each.worker.owner == owner), None)

    def watch(self) -> None:
        """End workers that exceed the execution limit; check again soon while any of them executes."""
        next_s = 1.0  # the pause after an unexpected error
        try:
            next_s = self._look()
        finally:
            self._loop.call_after(next_s, self.watch)

    def _look(self) -> float:
        executions = [execution for each in self if (execution := each.execution())]
        look = self._hangs.look(time.monotonic_ns(), executions)
        if look.gap_ns:
            _log.warning("the server stood still for %.1f s; execution limits are extended by it", look.gap_ns / 1e9)
        for number, signal_number in look.endings:
            instance = self._instances[number]
            with contained(instance):
                instance.end_for_limit(signal_number)
        return look.next_ns / 1e9


def _file_of(version: ModelVersion, placement: Placement, context: InstanceContext) -> Path | None:
    path = python_backend_file(version.config["backend"], Path(context.options.backend_directory))
    capability = placement.gpu.compute_capability if placement.gpu else ""
    return path or model_file(version.version_dir, version.config, placement.instance_name, capability)
