"""One worker process of an instance, from the request for it until its end, and what it holds meanwhile.

The order of an instance's workers, and what a worker's end causes, is decided in instance.py. Runs in the supervisor.
"""

import signal
from typing import Any

from shoal import errors
from shoal.errors import ShoalError
from shoal.messages.from_worker import MemoryMapped, MetricsReported, ModelIOFound, ModelLoaded, ReadyAnswered
from shoal.messages.message import on, table
from shoal.messages.shared import PayloadMapped, PayloadReleased, PayloadWanted, Refused, SegmentWanted
from shoal.messages.to_worker import StartInstance, StopWorker
from shoal.model_config.autocomplete import ModelIO
from shoal.placement import Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.event_loop import Future, resolve
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.children import Child
from shoal.supervisor.processes.death import Death
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.output import ChildOutput
from shoal.supervisor.processes.progress import WorkerProgress
from shoal.supervisor.processes.worker_program import reported_model_io, worker_program


class Worker:
    """A worker process, its connection and its place in the star."""

    def __init__(self, number: int, version: ModelVersion, context: InstanceContext) -> None:
        """`number` is the number of the instance."""
        self._number = number
        self._version = version
        self._context = context
        self.joined: Future[Member] = context.loop.future()
        self.found_io: Future[ModelIO] = context.loop.future()
        self.loaded: Future[ModelLoaded] = context.loop.future()
        self.mapped: Future[MemoryMapped] = context.loop.future()
        # Changed as the process begins, connects, comes up and ends.
        self.child: Child | None = None
        self._num_oom_kills = 0  # the kernel's count of OOM kills at the process's start
        self.output: ChildOutput | None = None
        self.up: Future[None] = context.loop.future()  # the task that brings the worker up
        self.member: Member | None = None
        self.participant: Participant | None = None  # the worker's place in the star
        self.progress: WorkerProgress | None = None  # the worker's progress through its batches, while it is up
        self.up_since_s = 0.0
        self.is_over_limit = False  # a batch has run for too long, and the worker is being ended for that
        self.end_fields: dict[str, Any] = {}  # for the log: what the worker was doing, its pid, its end
        self.error: ShoalError | None = None  # why the worker ends, or could not be started
        # For an instance that is a thread of another's process: done when the thread or the process has ended.
        self.thread: Future[int] | None = None
        self._is_stopping = False  # whether StopWorker has been sent
        self.handlers = table(
            on(ModelIOFound, lambda message: resolve(self.found_io, reported_model_io(message))),
            on(ModelLoaded, lambda message: resolve(self.loaded, message)),
            on(Refused, self._on_refused),
            on(MemoryMapped, lambda message: resolve(self.mapped, message)),
            on(MetricsReported, lambda message: context.metrics.add(version.model_id, number, message.families)),
            on(ReadyAnswered, lambda message: context.readiness.receive(self.owner, is_ready=message.is_ready)),
            on(PayloadWanted, self._on_payload),
            on(PayloadMapped, self._on_payload),
            on(PayloadReleased, self._on_payload),
            on(SegmentWanted, self._on_segment_wanted),
        )

    @property
    def pid(self) -> int:
        """The pid of this worker; 0 where none runs."""
        if self.child is None or self.child.is_over or (self.thread is not None and self.thread.done()):
            return 0
        return self.child.pid

    @property
    def owner(self) -> int:
        """The worker's owner id in the star; 0 where it has no memory there."""
        return self.participant.owner if self.participant else 0

    def begin(self, placement: Placement, *, has_low_priority: bool) -> Future[int]:
        """Start the process, and read its output; the future is the process's exit code, or an OSError where it
        cannot be started. Raises OSError where that is known at once."""
        self._num_oom_kills = self._context.oom_kills.count()
        kind, program = worker_program(
            self._number, self._version, placement, self._context, has_low_priority=has_low_priority
        )
        self.child = self._context.zygotes.spawn(kind, program, captured=True)
        model = self._version.identifier.name
        fields = {"model": model, "version": str(self._version.version), "instance": placement.instance_name}
        self.output = ChildOutput(self._context.loop, placement.instance_name, self.child, fields)
        self.output.start()
        return self.child.exited

    def begin_thread(self, first: "Worker") -> Future[int]:
        """Have another instance's process, which is up, start a thread for this one. The future is the exit code of
        the process; 0 where the thread has ended alone, as it does when it was told to or cannot load the model."""
        assert first.child is not None
        assert first.member is not None
        self._num_oom_kills = first._num_oom_kills
        self.child = first.child
        self.thread = thread = self._context.loop.future()
        exited = first.child.exited
        self._context.loop.after(exited, lambda: resolve(thread, exited.result()))
        first.member.send(StartInstance(self._number))
        return thread

    def connected(self, member: Member) -> None:
        """Note the worker's connection. That of a thread may end while the process goes on."""
        self.member = member
        if self.thread is None:
            return
        on_gone = member.on_gone

        def gone() -> None:
            on_gone()
            if self.thread is not None and (self._is_stopping or self.error is not None):
                resolve(self.thread, 0)
            else:
                self.signal(signal.SIGKILL)  # the thread alone has ended, without a StopWorker

        member.on_gone = gone

    def send_stop(self) -> None:
        """Send the worker StopWorker: it ends once it has answered the batches that it has."""
        self._is_stopping = True
        if self.member is not None:
            self.member.send(StopWorker())

    def drop_thread(self) -> None:
        """End a thread that is not up: it finds its connection closed, and the process goes on."""
        assert self.thread is not None
        resolve(self.thread, 0)  # first: if the connection ended before, the process would count as dead
        if self.member is not None:
            self.member.hang_up()

    def came_up(self, participant: Participant) -> None:
        """Prepare for the first batch: restore the process's priority, and read its progress from now on."""
        self.up_since_s = self._context.loop.now_s()
        self.progress = WorkerProgress(participant.read_only_fd, participant.link_fd)
        niceness.restore_priority(self.pid)

    def signal(self, number: int) -> None:
        """Send the process a signal; nothing happens where it, or the instance's thread in it, has ended."""
        if self.child is not None and (self.thread is None or not self.thread.done()):
            self.child.signal(number)

    def fail(self, error: ShoalError) -> None:
        """Kill the process, for this reason; an instance that is a thread of another's process, and not up yet, only
        loses its thread."""
        self.error = error
        if self.thread is not None and self.progress is None:
            self.drop_thread()
        else:
            self.signal(signal.SIGKILL)

    # --- messages from the worker ---

    def _on_refused(self, message: Refused) -> None:
        self.error = errors.from_wire(message.wire, message.sentence)

    def _on_payload(self, message: PayloadWanted | PayloadMapped | PayloadReleased) -> None:
        if self.participant is not None:
            self._context.star.payloads.receive(self.participant, message)

    def _on_segment_wanted(self, message: SegmentWanted) -> None:
        if self.participant is not None:
            self._context.star.lend(self.participant, message.owner)

    # --- the worker's end ---

    def finish(self) -> None:
        """Handle all that a process which has ended, or could not be started, had printed and sent."""
        self.up.cancel()
        if self.output is not None:
            self.output.finish()
        if self.member is not None:
            self.member.drain()

    def death(self, code: int, activity: str, limit_ms: int, placement: Placement, *, is_shared: bool) -> Death:
        """A description of this worker's end; `activity` is what it was doing, where it was not up; `is_shared`: there
        were other instances in the process."""
        assert self.child is not None
        oom_kills, progress = self._context.oom_kills, self.progress
        if progress is not None:
            activity = f"executing batch {progress.number}" if progress.busy_since_ns else "idle"
        return Death(
            self.child.pid,
            code,
            activity,
            self.child.peak_rss_bytes,
            oom_kills.limit_bytes(),
            code == -signal.SIGKILL and self.child.was_killed_for_memory(lambda: oom_kills.claim(self._num_oom_kills)),
            limit_ms if self.is_over_limit else 0,
            placement.kind != "KIND_CPU",
            is_shared and self.child.is_over,
        )
