"""One model instance as the supervisor sees it: its worker process, from exec to ready, and again after a death.

    start ─► STARTING ─join─► LOADING ─loaded─► MAPPING ─everybody acknowledged─► UP ─exit─► DOWN ─pause─► STARTING …
                                                           too many deaths (restarts.py)─► FAILED ─pause─► STARTING …

A worker that cannot load says why and exits; before the first UP that fails the version, later it is tried again.
"""

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from shoal import errors, log
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.messages.from_worker import MemoryMapped, MetricsReported, ModelIOFound, ModelLoaded, ReadyAnswered
from shoal.messages.message import on, table
from shoal.messages.shared import PayloadMapped, PayloadReleased, PayloadWanted, Refused, SegmentWanted
from shoal.messages.to_worker import ConfigFinished, StopWorker
from shoal.model_config.execution_timeout import execution_timeout_ms
from shoal.placement import Placement
from shoal.process import pin_threads
from shoal.reasons import Reason
from shoal.repository.lifecycle import ModelVersion
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.failure_domains import own_error, run_in
from shoal.supervisor.host import Host
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.models.instance_state import InstanceState, Listener
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.children import Child
from shoal.supervisor.processes.death import Death, last_words
from shoal.supervisor.processes.hangs import Execution
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.output import Output
from shoal.supervisor.processes.progress import Progress, rss_bytes
from shoal.supervisor.processes.restarts import Restarts, Verdict
from shoal.supervisor.processes.worker_program import load_message, reported_model_io, worker_program

_log = logging.getLogger(__name__)


_COMING_UP = (InstanceState.STARTING, InstanceState.LOADING, InstanceState.MAPPING)


class Instance:
    """One worker process, its connection and its place in the star."""

    def __init__(
        self,
        number: int,
        version: ModelVersion,
        placement: Placement,
        model_file: Path | None,
        host: Host,
        listener: Listener,
    ) -> None:
        self.number = number
        self.version = version
        self.placement = placement
        self._model_file = model_file
        self._host = host
        self._listener = listener
        # Changed as the worker goes through its states.
        self.state = InstanceState.DOWN
        self.num_starts = 0  # and those of the instances whose place it took
        self.num_recycles = 0
        self._restarts = Restarts()
        self._child: Child | None = None
        self._output: Output | None = None
        self._num_oom_kills = 0  # at its start
        self._member: Member | None = None
        self.participant: Participant | None = None  # its place in the star
        self.progress: Progress | None = None  # what its worker says of its batches, while it is up
        self._up_since_s = 0.0
        self.rss_when_up_bytes = 0  # before its first batch
        self._is_over_limit = False
        self._error: ShoalError | None = None
        self._is_leaving = False
        self.has_been_up = False  # ever ready for batches
        self.is_failed = False  # it died too often and has not come up since, even if it is being tried again
        self.handlers = table(
            on(ModelIOFound, self._on_model_io),
            on(ModelLoaded, self._on_loaded),
            on(Refused, self._on_refused),
            on(MemoryMapped, self._on_mapped),
            on(MetricsReported, self._on_metrics),
            on(ReadyAnswered, lambda message: host.readiness.hear(self.owner, is_ready=message.is_ready)),
            on(PayloadWanted, self._on_payload),
            on(PayloadMapped, self._on_payload),
            on(PayloadReleased, self._on_payload),
            on(SegmentWanted, self._on_segment_wanted),
        )

    @property
    def name(self) -> str:
        """Triton's name of the instance, as in `simple_0_0`."""
        return self.placement.instance_name

    @property
    def owner(self) -> int:
        """Its owner id in the star, 0 where it has no memory there."""
        return self.participant.owner if self.participant else 0

    @property
    def pid(self) -> int:
        """The process of its worker, 0 where none runs."""
        return self._child.pid if self._child else 0

    @property
    def title(self) -> str:
        """For the log."""
        return f"instance '{self.name}' of model '{self.version.name}'"

    def contain(self, error: Exception) -> None:
        """As a failure domain: its worker ends, and is started again as after any death."""
        self._error = InternalError(f"{_named(self.version, self.name)}: {own_error(error)}")
        if self._child is None or self._child.is_over:
            self._host.loop.call_after(0, partial(self._let_go, self.num_starts))
        else:
            self.kill()

    def take_place_of(self, other: "Instance") -> None:
        """It is not started yet, and its start is another start of what has the other's name."""
        self.num_starts, self.num_recycles = other.num_starts, other.num_recycles + 1

    def start(self) -> None:
        """Start the worker. It has --model-load-timeout-secs to come up."""
        run_in(self, self._start)

    def _start(self) -> None:
        self.state = InstanceState.STARTING
        self.num_starts += 1
        self._error, self._is_over_limit = None, False
        gives_way = not self.has_been_up  # who comes back after a death is missed
        try:
            self._num_oom_kills = self._host.oom_kills.count()
            kind, program = worker_program(self.number, self.version, self.placement, self._host, gives_way=gives_way)
            self._child = self._host.zygotes.spawn(kind, program, captured=True)
        except OSError as refused:
            self._error = UnavailableError(f"the worker of instance '{self.name}' cannot be started: {refused}")
            self._host.loop.call_after(0, partial(self._let_go, self.num_starts))
            return
        self._child.watch(self._exited)
        self._output = Output(self._host.loop, self.name, self._child)
        self._output.start()
        timeout_s, start = self._host.options.model_load_timeout_secs, self.num_starts
        self._host.loop.call_after(timeout_s, lambda: self._check_loaded(start))

    def join(self, member: Member) -> None:
        """The worker has connected: tell it what to load."""
        self.state = InstanceState.LOADING
        self._member = member
        member.domain = self
        member.listen(self.handlers)
        member.send(load_message(self.version, self.placement, self._model_file, self._host))

    def finish_config(self) -> None:
        """The version's configuration is final now; the worker that reported its model's tensors goes on with it."""
        if self._member is not None:
            self._member.send(ConfigFinished(self.version.config))

    def stop(self) -> None:
        """End the worker: one that is up has --exit-timeout-secs to finish what it has, others have nothing."""
        was, self.state = self.state, InstanceState.STOPPED
        self._is_leaving = True
        if self._child is None:
            self._listener.on_stopped(self)
            return
        self._host.gpu_memory.leaving(self.number, self.placement)
        if was is InstanceState.UP and self._member is not None:
            self._member.send(StopWorker())
            niceness.give_way(self.pid)
            limit_s = max(1, self._host.options.exit_timeout_secs)  # at 0, models are unloaded, too
            self._unless_over(limit_s, "has not ended within %g s of being told to; it is killed", self.kill)
        else:
            self.kill()

    def retire(self) -> None:
        """End the worker when the batcher has no more use for it, or after --request-timeout-secs; it stays away."""
        self._is_leaving = True
        if self.state is InstanceState.UP and self.participant is not None:
            self._host.star.retire_worker(self.participant)
            limit_s = self._host.options.request_timeout_secs
            self._unless_over(limit_s, "keeps requests open, %g s after the last; it is ended", self.stop)
        else:
            self.stop()

    def _unless_over(self, limit_s: float, complaint: str, then: Callable[[], None]) -> None:
        """Do `then` if the worker is where it is now for so long."""
        child, state = self._child, self.state

        def look() -> None:
            if self._child is child and self.state is state:
                _log.error("worker %s (pid %d) " + complaint, self.name, self.pid, limit_s)
                then()

        self._host.loop.call_after(limit_s, look)

    def pin(self, placement: Placement) -> None:
        """Run on these cores from now on; its threads stay as many as they are."""
        if placement.cores == self.placement.cores:
            return
        self.placement = placement
        if self._child is not None and self._child.pid:
            pin_threads(self._child.pid, placement.cores)

    def kill(self) -> None:
        """End the worker now."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    # --- whether it moves ---

    def execution(self) -> Execution | None:
        """The batch it is at, for who watches over the execution limit; None where there is none, or no limit."""
        limit_ms, progress = self._limit_ms, self.progress
        if not limit_ms or progress is None or not (progress.busy_since_ns or progress.is_waited_for):
            return None
        return Execution(self.number, progress.number, progress.moved_ns, limit_ms * 1_000_000)

    def end_for_limit(self, number: int) -> None:
        """Send the worker a signal because it is over the limit."""
        self._is_over_limit = True
        if self._child is not None:
            self._child.signal(number)

    @property
    def _limit_ms(self) -> int:
        own = execution_timeout_ms(self.version.config)
        return self._host.options.model_execution_timeout_secs * 1000 if own is None else own

    # --- what the worker says ---

    def _on_model_io(self, message: ModelIOFound) -> None:
        self._listener.on_model_io(self, reported_model_io(message))

    def _on_loaded(self, message: ModelLoaded) -> None:
        if self._member is None or self.state is not InstanceState.LOADING:
            return
        self.version.has_ready_check |= message.has_ready_check
        try:
            self.participant = self._host.star.join_worker(self._member, self.version.config)
            self.state = InstanceState.MAPPING
        except (OutOfSharedMemoryError, OSError) as error:
            self._fail(UnavailableError(str(error)))

    def _on_mapped(self, _message: MemoryMapped) -> None:
        if self.participant is not None and self.state is InstanceState.MAPPING:
            self._host.star.announce_worker(self.participant, self.version.model_id, self.placement, self._announced)

    def _announced(self) -> None:
        if self.participant is None or self.state is not InstanceState.MAPPING:
            return
        self.state = InstanceState.UP
        self.has_been_up, self.is_failed = True, False
        self._up_since_s = self._host.loop.now_s()
        self.rss_when_up_bytes = rss_bytes(self.pid)
        self.progress = Progress(self.participant.read_only_fd, self.participant.link_fd)
        niceness.join_in(self.pid)
        self._host.star.admit_worker(self.participant)
        self._listener.on_up(self)

    def _on_refused(self, message: Refused) -> None:
        self._error = errors.from_wire(message.wire, message.sentence)

    def _on_metrics(self, message: MetricsReported) -> None:
        self._host.metrics.add(self.version.model_id, self.number, message.families)

    def _on_payload(self, message: PayloadWanted | PayloadMapped | PayloadReleased) -> None:
        if self.participant is not None:
            self._host.star.payloads.hear(self.participant, message)

    def _on_segment_wanted(self, message: SegmentWanted) -> None:
        if self.participant is not None:
            self._host.star.lend(self.participant, message.owner)

    # --- its end ---

    def _fail(self, error: ShoalError) -> None:
        self._error = error
        self.kill()

    def _check_loaded(self, start: int) -> None:
        if start == self.num_starts and self.state in _COMING_UP:
            limit = self._host.options.model_load_timeout_secs
            self._fail(
                InternalError(
                    f"model '{self.version.name}' version {self.version.version} instance '{self.name}' did not load "
                    f"within {limit:g} s; give it longer with --model-load-timeout-secs"
                )
            )

    def _exited(self, child: Child, code: int) -> None:
        if self._output is not None:
            self._output.finish()
        if self._member is not None:
            self._member.drain()
        was, self.state = self.state, InstanceState.DOWN
        if was is InstanceState.UP and not self._is_leaving:
            self._listener.on_down(self)  # clients first: who is told of the death asks next whether it is ready again
        self._host.metrics.leave(self.number)
        self._host.gpu_memory.left(self.number, self.placement)
        death = self._account(child, code, was)
        if self.participant is not None:
            self._host.readiness.hear(self.owner, is_ready=False)
            detail = death.detail(self.version.groups, self.placement)
            self._host.star.leave_worker(self.participant, death.reason, detail)
        if self._member is not None:
            self._member.hang_up()
        progress, output = self.progress, self._output
        error = self._error or InternalError(f"{_named(self.version, self.name)} {death.describe()}")
        if not self._is_leaving and output is not None and (words := last_words(output.tail)):
            _log.error(log.block(f"the last that worker {self.name} (pid {child.pid}) wrote to stderr:", words))
        served_s = self._host.loop.now_s() - self._up_since_s if was is InstanceState.UP else 0.0
        self._child = self._output = self._member = self.participant = self.progress = None
        self._follow(error, served_s, has_completed=progress is not None and progress.has_completed)

    def _let_go(self, start: int) -> None:
        """Its worker could not begin, or to handle its end has failed: whatever is left of it goes."""
        child, output, member, participant = self._child, self._output, self._member, self.participant
        has_begun = self.state is not InstanceState.STARTING if child is None else not child.is_over
        if start != self.num_starts or has_begun:
            return  # what follows has happened already, or its worker still has to end
        self._child = self._output = self._member = self.participant = self.progress = None
        was, self.state = self.state, InstanceState.DOWN
        host = self._host
        with ExitStack() as last_first:  # each is done, even if another fails
            assert self._error is not None
            last_first.callback(self._follow, self._error)
            if output is not None:
                last_first.callback(output.finish)
            if member is not None:
                last_first.callback(member.hang_up)
            if participant is not None:
                if participant.owner in host.star.workers:
                    last_first.callback(host.star.leave_worker, participant, Reason.INSTANCE_DIED, 0)
                last_first.callback(host.readiness.hear, participant.owner, is_ready=False)
            last_first.callback(host.gpu_memory.left, self.number, self.placement)
            last_first.callback(host.metrics.leave, self.number)
            if was is InstanceState.UP and not self._is_leaving:
                last_first.callback(self._listener.on_down, self)

    def _follow(self, error: ShoalError, served_s: float = 0.0, *, has_completed: bool = False) -> None:
        """What follows its worker's end: its own, or another start."""
        if self._is_leaving:
            self.state = InstanceState.STOPPED
            self._listener.on_stopped(self)
            return
        if not self.has_been_up:
            self.state = InstanceState.STOPPED
            self._listener.on_load_failed(self, error)
            return
        verdict = self._restarts.died(self._host.loop.now_s(), served_s, has_completed=has_completed)
        self._restart_later(error, verdict)

    def _account(self, child: Child, code: int, was: InstanceState) -> Death:
        """What is known of a worker's end."""
        activity, progress = was.value, self.progress
        if progress is not None:
            activity = f"executing batch {progress.number}" if progress.busy_since_ns else "idle"
        return Death(
            child.pid,
            code,
            activity,
            child.peak_rss_bytes,
            self._host.oom_kills.limit_bytes(),
            code == -signal.SIGKILL and self._host.oom_kills.claim(self._num_oom_kills),
            self._limit_ms if self._is_over_limit else 0,
            self.placement.kind != "KIND_CPU",
        )

    def _restart_later(self, error: ShoalError, verdict: Verdict) -> None:
        if verdict.is_failed:
            self.state, self.is_failed = InstanceState.FAILED, True
            _log.error(
                "%s; it has died too often without completing a batch and is FAILED, it is tried again in %g s",
                error, verdict.pause_s,
            )  # fmt: skip
        else:
            _log.error("%s; it is started again in %g s", error, verdict.pause_s)
        self._host.loop.call_after(verdict.pause_s, self._restart)
        if verdict.is_failed:
            self._listener.on_failed(self, str(error))

    def _restart(self) -> None:
        if self.state in (InstanceState.DOWN, InstanceState.FAILED):
            self.start()


def _named(version: ModelVersion, name: str) -> str:
    return f"model '{version.name}' version {version.version}: instance '{name}'"
