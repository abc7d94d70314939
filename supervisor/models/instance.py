"""One model instance as the supervisor sees it: its worker process, from start to ready, and again after a death.

    start ─► STARTING ─join─► LOADING ─loaded─► MAPPING ─all have acknowledged─► UP ─exit─► DOWN ─pause─► STARTING …
                                                           too many deaths (restarts.py)─► FAILED ─pause─► STARTING …

A worker that cannot load reports why and exits. Where the instance has never been UP, that fails the version;
otherwise the instance starts another worker.
"""

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import log
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.messages.message import MessageError
from shoal.messages.to_worker import ConfigFinished, PinInstance
from shoal.model_config.execution_timeout import execution_limit_ms, load_timeout_s
from shoal.open_files import explain, explain_start
from shoal.placement import Placement
from shoal.process import EXIT_DEVICE_LOST, pin_threads
from shoal.reasons import Reason
from shoal.repository.lifecycle import ModelVersion
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future, first, resolve, shared
from shoal.supervisor.failure_domains import contained, own_error
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.models.instance_state import InstanceState
from shoal.supervisor.models.shared_process import SharedProcess
from shoal.supervisor.models.worker import Worker
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.death import last_words
from shoal.supervisor.processes.hangs import Execution
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.progress import WorkerProgress, rss_bytes
from shoal.supervisor.processes.restarts import Restarts, Verdict
from shoal.supervisor.processes.worker_program import load_message

_log = logging.getLogger(__name__)


class Instance:
    """A model instance under one name, with one worker process after another."""

    def __init__(
        self,
        number: int,
        version: ModelVersion,
        placement: Placement,
        model_file: Path | None,
        context: InstanceContext,
        on_state: Callable[["Instance"], None],
    ) -> None:
        """`on_state` is called when the instance has come up, has died, or is FAILED, before other processes are sent
        anything about that."""
        self.number = number
        self.version = version
        self.placement = placement
        self._model_file = model_file
        self._context = context
        self._on_state = on_state
        #: The process that this instance shares with others; None where it has one of its own. Set before `start`.
        self.shared_process: SharedProcess | None = None
        self._leaving: Future[None] = context.loop.future()  # done when the instance is to end
        # Changed as the worker goes through its states.
        self.state = InstanceState.DOWN
        self.num_starts = 0  # starts of workers, those by the instances that this one replaced included
        self.num_recycles = 0
        self._restarts = Restarts()
        self.worker = Worker(number, version, context)  # the one that runs, or the last one
        self.rss_when_up_bytes = 0  # resident memory before the first batch
        self.has_been_up = False  # the instance has been ready for batches at least once
        self.is_failed = False  # died too often and has not come up since, even if started again

    @property
    def name(self) -> str:
        """Triton's name of the instance, as in `simple_0_0`."""
        return self.placement.instance_name

    @property
    def progress(self) -> WorkerProgress | None:
        """The worker's progress through its batches, while the instance is up."""
        return self.worker.progress

    @property
    def pid(self) -> int:
        """The pid of this instance's worker; 0 where none runs."""
        return self.worker.pid

    @property
    def title(self) -> str:
        return f"instance '{self.name}' of model '{self.version.name}'"

    @property
    def _fields(self) -> dict[str, Any]:
        """Fields of a log line about this instance and the end of its worker."""
        version = self.version
        named = {"model": version.name, "version": str(version.version), "instance": self.name}
        return {**named, **self.worker.end_fields}

    @property
    def _named(self) -> str:
        return f"model '{self.version.name}' version {self.version.version}: instance '{self.name}'"

    def contain(self, error: Exception) -> None:
        """End the worker after an unexpected error in one of its callbacks; it is started again as after any death."""
        self.worker.fail(InternalError(f"{self._named}: {own_error(error)}"))

    def _on_malformed(self, error: MessageError) -> None:
        """End the worker, which has sent a malformed message: its model's code, or its backend, has written it."""
        self.worker.fail(InternalError(f"{self._named}: its worker has sent {error}"))

    # --- one worker after the other ---

    def take_place_of(self, other: "Instance") -> None:
        """Continue the counts of starts and recyclings of an instance that this one, not started yet, replaces."""
        self.num_starts, self.num_recycles = other.num_starts, other.num_recycles + 1

    def start(self) -> None:
        """Prepare a worker, whose process is started by `run`."""
        self.state = InstanceState.STARTING
        self.num_starts += 1
        self.worker = Worker(self.number, self.version, self._context)

    async def run(self) -> None:
        """Serve with one worker after another, once started, until `stop` or `retire`.

        Raises ShoalError where the first worker cannot come up.
        """
        while not self._leaving.done():
            worker, code = self.worker, 0
            with contained(self):
                code = await self._run_worker(worker)
            verdict = self._end(worker, code)
            assert worker.error is not None
            if not (self._leaving.done() or self.has_been_up):
                self.state = InstanceState.STOPPED
                raise worker.error
            if not self._leaving.done():
                self._note(worker.error, verdict)
                await first(self._leaving, limit_s=verdict.pause_s)
            if not self._leaving.done():
                self.start()
        self.state = InstanceState.STOPPED

    async def _run_worker(self, worker: Worker) -> int:
        """Start a worker's process, bring it up, and wait for its end; returns its exit code, 0 if it never started."""
        of_model = load_timeout_s(self.version.config)
        limit_s = of_model or self._context.options.model_load_timeout_secs
        flag = "startup_timeout" if of_model else "--model-load-timeout-secs"
        try:
            exited = await self._begin(worker)
            if exited is None:
                worker.error = UnavailableError(f"{self._named} is not needed any more")
                return 0
            worker.up = self._context.loop.start(self._bring_up(worker))
            if not await first(worker.up, exited, limit_s=limit_s):
                worker.fail(
                    InternalError(
                        f"model '{self.version.name}' version {self.version.version} instance '{self.name}' did not "
                        f"load within {limit_s:g} s; give it longer with {flag}"
                    )
                )
            return await shared(exited)
        except UnavailableError as refused:  # there is no directory for the model's Python environment
            worker.error = refused
            return 0
        except OSError as refused:  # the start itself has failed, or the zygote that should fork the process
            worker.error = UnavailableError(
                f"the worker of instance '{self.name}' cannot be started: {explain_start(refused)}"
            )
            return 0

    async def _begin(self, worker: Worker) -> Future[int] | None:
        """Start a worker's process, or its thread once the process that it shares is up; the future's result is the
        exit code. None if the instance is to end before that. Raises OSError."""
        first_worker = None if self.shared_process is None else await self.shared_process.up(self, self._leaving)
        if first_worker is not None:
            return worker.begin_thread(first_worker)
        if self._leaving.done():
            return None
        return worker.begin(self.placement, has_low_priority=not self.has_been_up)  # a restart is urgent

    async def _bring_up(self, worker: Worker) -> None:
        """Take a worker from its connection to the state UP; cancelled where its process ends before."""
        member, star = await shared(worker.joined), self._context.star
        self.state = InstanceState.LOADING
        member.send(load_message(self.version, self.placement, self._model_file, self._context))
        loaded = await shared(worker.loaded)
        self.version.has_ready_check |= loaded.has_ready_check
        try:
            worker.participant = star.join_worker(member, self.version.config)
        except (OutOfSharedMemoryError, OSError) as error:
            worker.fail(UnavailableError(explain(error)))
            return
        self.state = InstanceState.MAPPING
        await shared(worker.mapped)
        await star.announce_worker(worker.participant, self.version.model_id, self.placement, self.version.groups)
        # The batcher and all front ends have mapped the worker's memory. Nothing is awaited from here on: so for code
        # that finds the state UP, all of what follows has been done.
        if not worker.pid:
            return
        try:
            worker.came_up(worker.participant)
        except OSError as error:
            worker.fail(UnavailableError(explain(error)))
            return
        self.state = InstanceState.UP
        self.has_been_up, self.is_failed = True, False
        self.rss_when_up_bytes = rss_bytes(self.pid)
        star.admit_worker(worker.participant)
        if self.shared_process is not None and worker.thread is None:
            self.shared_process.came_up()
        self._on_state(self)

    def _end(self, worker: Worker, code: int) -> Verdict:
        """Free what a worker held that has ended, or could not be started, and report its end; nothing is awaited.

        Each step is taken even if another fails. Returns what follows if the instance goes on.
        """
        context, reason, detail = self._context, Reason.INSTANCE_DIED, 0
        with contained(self):
            worker.finish()
        was, self.state = self.state, InstanceState.DOWN
        is_missed = not self._leaving.done()
        with contained(self):
            if was is InstanceState.UP and is_missed:
                self._on_state(self)  # told first, as clients then ask front ends if the model is ready
        with contained(self):
            context.metrics.leave(self.number)
        with contained(self):
            if worker.thread is None:
                context.gpu_memory.left(self.number, self.placement)
        with contained(self):
            if worker.child is not None:
                is_shared = self.shared_process is not None and self.shared_process.has_others(worker)
                death = worker.death(code, was.value, self._limit_ms, self.placement, is_shared=is_shared)
                worker.end_fields = death.fields
                worker.error = worker.error or InternalError(f"{self._named} {death.describe()}")
                reason, detail = death.reason, death.detail(self.version.groups, self.placement)
        if worker.participant is not None:
            with contained(self):
                context.readiness.receive(worker.owner, is_ready=False)
            with contained(self):
                context.star.leave_worker(worker.participant, reason, detail)
        if worker.member is not None:
            worker.member.hang_up()
        child, output = worker.child, worker.output
        if is_missed and child and output and (words := last_words(output.tail)):
            heading = f"the last that worker {self.name} (pid {child.pid}) wrote to stderr:"
            _log.error(log.block(heading, words), extra=self._fields)
        # A worker answers the batch at which it loses its GPU, with errors, before it ends: so one that has lost its
        # GPU at its first batch has completed one.
        num_completed = 0 if worker.progress is None else worker.progress.num_completed
        if self.shared_process is not None:
            num_completed = self.shared_process.num_completed
            progress, worker.progress = worker.progress, None
            with contained(self):
                self.shared_process.ended(progress)
        worker.participant = worker.progress = None
        if worker.thread is not None and worker.child is not None and worker.child.is_over:
            return Verdict(0.0, is_failed=False)  # the process's first instance starts the next one
        now_s = context.loop.now_s()
        served_s = now_s - worker.up_since_s if was is InstanceState.UP else 0.0
        verdict = self._restarts.died(now_s, served_s, has_completed=num_completed > 0)
        return self._heed_quarantine(verdict, now_s, is_loss=code == EXIT_DEVICE_LOST and num_completed <= 1)

    def _heed_quarantine(self, verdict: Verdict, now_s: float, *, is_loss: bool) -> Verdict:
        """The verdict on a worker's end; where the worker's GPU is in quarantine for longer than the pause, with that
        longer pause. `is_loss`: the worker has lost the GPU at its first batch."""
        gpu, quarantine = self.placement.gpu, self._context.quarantine
        if gpu is None:
            return verdict
        begins = is_loss and quarantine.lost(gpu.uuid, self.version.name, now_s)
        left_s = quarantine.left_s(gpu.uuid, now_s)
        if begins:
            _log.error(
                "GPU %d (%s) is in quarantine for %g s: workers of several models have lost it with their first batch",
                gpu.id, gpu.uuid, left_s,
            )  # fmt: skip
        if left_s <= verdict.pause_s:
            return verdict
        return Verdict(left_s, is_failed=True)

    def _note(self, error: ShoalError, verdict: Verdict) -> None:
        """Log what follows a worker's end; after too many ends the instance is FAILED."""
        if not verdict.is_failed:
            _log.error("%s; it is started again in %g s", error, verdict.pause_s, extra=self._fields)
            return
        self.state, self.is_failed = InstanceState.FAILED, True
        if self.shared_process is not None and self.shared_process.is_first(self):
            self.shared_process.fail()
        _log.error(
            "%s; %s and is FAILED, it is tried again in %g s", error, self._why_failed(), verdict.pause_s,
            extra=self._fields,
        )  # fmt: skip
        with contained(self):
            self._on_state(self)

    def _why_failed(self) -> str:
        gpu = self.placement.gpu
        if gpu is not None and self._context.quarantine.left_s(gpu.uuid, self._context.loop.now_s()):
            return f"it has to wait for GPU {gpu.id}, which is in quarantine,"
        return "it has died too often without completing a batch"

    # --- what becomes of the present worker ---

    def join(self, member: Member) -> None:
        """Handle the messages of the instance's worker, which has connected."""
        self.worker.connected(member)
        member.domain = self
        member.on_malformed = self._on_malformed
        member.listen(self.worker.handlers)
        self.worker.joined.set_result(member)

    def finish_config(self) -> None:
        """Send the version's final configuration to the worker that reported its model's tensors and waits for it."""
        if self.worker.member is not None:
            self.worker.member.send(ConfigFinished(self.version.config))

    def stop(self) -> None:
        """End the worker: at once, or within --exit-timeout-secs if it is up and may have requests to finish."""
        was, self.state = self.state, InstanceState.STOPPED
        resolve(self._leaving, None)
        worker, shared_process = self.worker, self.shared_process
        if not worker.pid and (worker.child is None or worker.child.is_over or worker.thread is not None):
            return
        if shared_process is not None and shared_process.is_first(self):
            shared_process.stop_last(lambda: self._stop(worker, was))
        else:
            self._stop(worker, was)

    def _stop(self, worker: Worker, was: InstanceState) -> None:
        if worker.child is not None and worker.child.is_over:
            return  # the process has died while its first instance waited for the end of the other threads
        if worker.thread is None:
            self._context.gpu_memory.leaving(self.number, self.placement)
        if was is InstanceState.UP and worker.member is not None:
            worker.send_stop()
            if worker.thread is None:
                niceness.lower_priority(worker.pid)
            # At least a second: with --exit-timeout-secs=0, too, an unloaded model may finish its requests.
            limit_s = max(1, self._context.options.exit_timeout_secs)
            self._unless_over(worker, limit_s, "has not ended within %g s of being told to; it is killed", self.kill)
        elif worker.thread is not None:
            worker.up.cancel()
            worker.drop_thread()
        else:
            worker.up.cancel()
            self.kill()

    def retire(self) -> None:
        """End the worker when the batcher has no more requests for it, or after --request-timeout-secs. It is not
        started again."""
        resolve(self._leaving, None)
        worker = self.worker
        if self.state is InstanceState.UP and worker.participant is not None:
            self._context.star.retire_worker(worker.participant)
            limit_s = self._context.options.request_timeout_secs
            self._unless_over(worker, limit_s, "keeps requests open, %g s after the last; it is ended", self.stop)
        else:
            self.stop()

    def _unless_over(self, worker: Worker, limit_s: float, complaint: str, then: Callable[[], None]) -> None:
        """After `limit_s`, log the complaint and call `then`, unless the worker has ended or the state of this instance
        has changed."""
        state = self.state

        def look() -> None:
            if worker.pid and self.state is state:
                _log.error("worker %s (pid %d) " + complaint, self.name, worker.pid, limit_s)
                then()

        self._context.loop.call_after(limit_s, look)

    def pin(self, placement: Placement) -> None:
        """Pin the worker to these cores; the number of its threads stays."""
        if placement.cores == self.placement.cores:
            return
        self.placement = placement
        if self.shared_process is not None and self.worker.member is not None:
            self.worker.member.send(PinInstance(list(placement.cores)))
        elif self.pid:
            try:
                pin_threads(self.pid, placement.cores)
            except OSError as error:
                _log.error("worker %s (pid %d) keeps its cores: %s", self.name, self.pid, explain(error))

    def kill(self) -> None:
        self.worker.signal(signal.SIGKILL)

    # --- whether the worker makes progress ---

    def execution(self) -> Execution | None:
        """The batch that the worker executes, for the execution limit; None where there is none, or no limit."""
        limit_ms, progress = self._limit_ms, self.progress
        if not limit_ms or progress is None or not (progress.busy_since_ns or progress.is_waited_for):
            return None
        return Execution(self.number, progress.number, progress.moved_ns, limit_ms * 1_000_000)

    def end_for_limit(self, number: int) -> None:
        """Send the worker a signal because a batch has exceeded the execution limit. A worker that was stopped
        (SIGSTOP) is resumed, so that it acts on the signal."""
        self.worker.is_over_limit = True
        self.worker.signal(number)
        self.worker.signal(signal.SIGCONT)

    @property
    def _limit_ms(self) -> int:
        return execution_limit_ms(self.version.config, self._context.options.model_execution_timeout_secs)
