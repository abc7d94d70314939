"""The supervisor: the server's main process. Starts the other processes, answers their joins, and stops them.

    bind sockets ─► batcher ─► models (workers) and gunicorn's arbiter in parallel ─► all settled ─► listen ─► serve
    SIGTERM ─► front ends finish what they accepted ─► workers unload ─► exit 0;  a second signal: everything ends now

The supervisor owns the listening sockets and nothing that a request needs. It has one thread: children die with the
thread that made them.
"""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from shoal import log
from shoal.api_keys import ApiKey
from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError, ShoalError, index_reason
from shoal.messages import from_batcher, from_client, from_worker, to_client, to_poller, to_tracer, upgrade
from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import LogSettings, PoisonFound
from shoal.messages.to_comparator import ComparatorConnected
from shoal.messages.to_recorder import RecorderConnected
from shoal.open_files import explain, explain_start
from shoal.options import ServerOptions
from shoal.placement import Machine
from shoal.process import adopt_orphans
from shoal.repository.slots import Slot
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.certificates import Certificates
from shoal.supervisor.event_loop import ACCEPT_AGAIN_S, Future, Task, first, first_awake, shared
from shoal.supervisor.failure_domains import contained, report
from shoal.supervisor.key_file import KeyFile
from shoal.supervisor.ledger import Ledger
from shoal.supervisor.memory.available_memory import available_nbytes
from shoal.supervisor.memory.client_regions import ClientRegions
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.models.models import no_models_error
from shoal.supervisor.parts import Administration, Foundation, Observation
from shoal.supervisor.processes.batchers import Batchers
from shoal.supervisor.processes.clients import Clients
from shoal.supervisor.processes.front_ends import REFUSAL_S, FrontEnds
from shoal.supervisor.processes.guests import Guests
from shoal.supervisor.processes.listeners import Listeners
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.silent_members import SilentMembers
from shoal.supervisor.processes.stopped_processes import StoppedProcesses
from shoal.supervisor.questions.batcher_questions import BatcherQuestions
from shoal.supervisor.questions.gauges import gauges, memory_of_models
from shoal.supervisor.questions.guest_questions import GuestQuestions
from shoal.supervisor.questions.questions import Questions, Verb
from shoal.supervisor.reload import Reload
from shoal.supervisor.service import Notifier, Service
from shoal.supervisor.signals import Signals
from shoal.supervisor.upgrade.carried import CarriedState
from shoal.supervisor.upgrade.predecessor import CLIENT_SOCKET
from shoal.supervisor.upgrade.upgrade import BY_HAND, Origin, Upgrade, guarded

_log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED = 0, 1
#: Unexpected errors that end the server where no smaller failure domain contains them, and within which time (ours).
MAX_FAULTS, FAULTS_WITHIN_S = 20, 60.0


class Supervisor:
    """The process tree and its three phases: starting, serving, stopping."""

    title = "the server"  # in the log

    def __init__(
        self,
        options: ServerOptions,
        log_settings: LogSettings,
        listeners: Listeners,
        notifier: Notifier,
        slots: Mapping[CloudUrl, Slot],
        machine: Machine,
        store_slot: Slot | None = None,
        api_keys: tuple[ApiKey, ...] | None = None,
        origin: Origin = BY_HAND,
    ) -> None:
        self._options, self._predecessor = options, origin.predecessor
        self._foundation = foundation = Foundation(options, log_settings, machine)
        loop, star, address = foundation.loop, foundation.star, foundation.address
        self._loop, self._star, self._roster = loop, star, foundation.roster
        self._control, self._zygotes = foundation.control, foundation.zygotes
        self._admin = admin = Administration(foundation, slots, store_slot, self._on_models_changed)
        self._models = admin.models
        self._observation = observation = Observation(foundation, admin)
        self._key_file = KeyFile(options.api_keys, star, api_keys)
        self._front_ends = FrontEnds(
            loop, options, log_settings, address, listeners, self._key_file, self._zygotes, has_gpus=bool(machine.gpus)
        )
        self._batchers = Batchers(star, self._zygotes, address, self._join_batcher, foundation.context.oom_kills)
        self._batcher_questions = BatcherQuestions(star, self._models, foundation.counters)
        self._regions = ClientRegions(star, [gpu.id for gpu in machine.gpus])
        self._carried = CarriedState(star, admin, observation, self._regions)
        questions = Questions(loop, self._verbs())
        self._clients = Clients(star, self._models, questions, self._front_ends, self._send_settings, self._gives_up)
        guest_questions = GuestQuestions(options, self._models, star.counter_memory.read, foundation.readiness.is_ready)
        self._guests = Guests(star, Questions(loop, guest_questions.verbs), self._clients.send_models)
        is_main, timeout_s = origin.predecessor is None, options.model_load_timeout_secs
        self._service = Service(star, notifier, timeout_s, is_main=is_main)
        self._state_writers = admin.rollouts.writer, admin.shadows.writer
        self._upgrade = Upgrade(
            star, address, origin, self._carried, listeners, self._guests, self._service, self._state_writers
        )
        self._certificates = Certificates(loop, options, star)
        log_control, poll = observation.log_control, admin.model_control.poll_now
        self._reload = Reload(loop, options, self._certificates, self._key_file, log_control, poll)
        self._signals = Signals(loop, Ledger(star).ask, self._on_hup, self._upgrade.on_signal)
        # Changed as processes join, as phases end, and by contain.
        self._members = WeakSet[Member]()  # all that have connected, until they are garbage
        self._is_serving = False
        self._is_hup_due = False  # SIGHUP has come before the server serves
        self._has_memory: Future[None] = loop.future()  # done when the first batcher has its memory
        self._drained: Future[None] = loop.future()  # done when the front ends have ended
        self._failed: Future[None] = loop.future()  # done when the server must end; the log says why
        self._faults_s: list[float] = []

    def _verbs(self) -> dict[str, Verb]:
        """All that front ends and models may ask, by name; what changes the server is refused during an upgrade."""
        admin, observation = self._admin, self._observation
        verbs: dict[str, Verb] = {
            "gauges": self._gauges,
            "is_ready": self._foundation.readiness.is_ready,
            "log_settings": observation.log_control.change,
            "trace_settings": observation.tracing.change,
        }
        for part in (
            admin.model_control, admin.scaling, admin.registrations, admin.workflows, admin.shadows, admin.rollouts,
            observation.recording, self._batcher_questions,
        ):  # fmt: skip
            verbs |= part.verbs
        is_under_way, overtakes = lambda: self._upgrade.is_under_way, lambda: self._upgrade.overtakes
        return guarded(verbs, is_under_way, overtakes, self._carried.changes) | self._regions.verbs

    @property
    def batcher_handlers(self) -> Handlers:
        return table(
            on(from_batcher.ProcessDistrusted, self._on_distrusted),
            on(from_batcher.WorkerRetired, self._on_worker_retired),
            on(from_batcher.ModelRetired, lambda message: self._models.on_drained(message.model_id)),
            on(from_batcher.ModelExplained, self._batcher_questions.receive),
            on(PoisonFound, self._models.on_poison),
            on(from_batcher.FinishedRequestsListed, self._batcher_questions.receive),
            on(from_batcher.RequestsMirrored, self._admin.shadows.on_mirrored),
            on(from_batcher.SplitFigures, self._admin.rollouts.traffic.receive),
        )

    def run(self) -> int:
        """Start, serve, stop; returns the exit code. Children still alive then die with it (PR_SET_PDEATHSIG)."""
        adopt_orphans()
        self._signals.watch()
        with contained(self):
            self._loop.on_readable(self._control.fileno(), self._accept)
            StoppedProcesses(self._loop, lambda: self._roster.to_be_kept_going(self._star.front_ends)).watch()
            if self._predecessor is not None:
                self._predecessor.watch(
                    self._loop, self._regions.restore, self._failed, lambda: self._signals.is_ending
                )
                self._regions.report = self._predecessor.send_region
            living = self._loop.begin(self._live())
        living.add_done_callback(lambda _: self._loop.stop())
        while not living.done():
            with contained(self):
                self._loop.run()
        for member in tuple(self._members):
            member.close()
        foundation = self._foundation
        for each in (self._signals, self._control, self._guests, self._front_ends):
            each.close()
        for measuring in (foundation.gpu_memory, foundation.memory):
            measuring.close()
        for writer in self._state_writers:
            writer.close()
        self._loop.end()
        return living.result()

    # --- phases ---

    async def _live(self) -> int:
        """Start, serve until a signal, stop; returns the exit code."""
        starting = self._loop.begin(self._start())
        batchers = self._loop.begin(self._batchers.run())
        done = await first(starting, batchers, self._signals.first, self._failed)
        if done == {starting} and starting.exception() is None:
            done = await first(batchers, self._signals.first, self._failed, self._upgrade.handed_over)
        if not done & {self._signals.first, self._upgrade.handed_over}:
            return self._give_up(starting, batchers)
        starting.cancel()
        stopping = self._loop.begin(self._stop())
        limit_s = self._options.exit_timeout_secs
        done = await first_awake(stopping, batchers, self._signals.second, self._failed, limit_s=limit_s)
        if stopping in done and stopping.exception() is None:
            return EXIT_OK
        if self._signals.second in done:
            _log.warning("second signal: exiting immediately")
        elif not done:
            _log.error("Exit timeout expired. Exiting immediately.")
            self._clients.announce_ending(to_client.ExitTimeoutExpired())  # front ends refuse all that is still open
            await first(self._drained, self._signals.second, self._failed, limit_s=REFUSAL_S)
        return self._give_up(stopping, batchers)

    def _give_up(self, phase: Task[None], batchers: Task[None]) -> int:
        """Log why the server ends: an error of a phase, or the failure of one batcher after the other. Returns the exit
        code."""
        if batchers.done():
            _log.error("one batcher after the other has failed; the server ends, restart it")
        error = phase.exception() if phase.done() else None
        if self._predecessor is not None:
            self._predecessor.fail(str(error or "it has failed"))
        if isinstance(error, (_CannotServeError, ShoalError, OutOfSharedMemoryError, OSError)):
            _log.error("%s", explain_start(error))
        elif isinstance(error, Exception):
            report(self, error)
            _log.error("the server ends: it cannot start" if not self._is_serving else f"the server ends: {error!r}")
        return EXIT_FAILED

    async def _start(self) -> None:
        """Go from bound sockets to READY. Raises _CannotServeError, and OutOfSharedMemoryError or OSError where the
        system refuses memory or a process."""
        self._admin.repository.start()
        self._zygotes.start()
        self._observation.tracing.start()
        await self._observation.recording.check()
        self._observation.recording.start()
        await shared(self._has_memory)
        self._roster.watch()
        self._admin.scaling.watch()
        self._admin.recycling.watch()
        loading = self._loop.begin(self._load_at_start())
        self._front_ends.start()  # not before: until here the poller needs the cores for its imports
        try:
            await shared(loading)
        except ShoalError as error:
            raise _CannotServeError("error: creating server", error) from error
        self._log_models()
        await self._carried.settle(self._predecessor)
        names = [model.identifier.name for model in self._models.models.values() if model.serving]
        try:
            started = self._front_ends.open(names, has_repositories=self._admin.model_control.has_repositories)
        except InvalidArgumentError as error:
            raise _CannotServeError("failed to start Vertex AI service", error) from error
        self._zygotes.lower_priority()
        if self._options.model_control_mode == "none":
            self._zygotes.end_base()
        self._batchers.start_standby()
        SilentMembers(self._star).watch()
        self._reload.watch()
        old = self._predecessor
        self._guests.start(self._front_ends.port, None if old is None else old.take_socket(CLIENT_SOCKET))
        await shared(started)
        if old is not None:
            await old.take_over()
            self._service.take_over()
        self._is_serving = True
        self._upgrade.allow()
        if self._is_hup_due:
            self._reload.on_hup()
        self._service.ready(self._models.versions, self._front_ends.num_front_ends)
        if self._options.announcement:
            sys.stdout.write(f"{self._options.announcement}\n")
            sys.stdout.flush()

    async def _load_at_start(self) -> None:
        """Load the models of the repositories and of TorchServe's store, and at an upgrade those of the old server."""
        await self._foundation.mps.start()
        self._admin.shadows.restore()
        from_repositories = self._admin.model_control.load_at_start()
        if self._options.store is not None:
            await self._admin.registrations.load_at_start(self._carried.registered(self._predecessor))
            if self._options.model_control_mode == "poll" and self._options.repository_poll_secs:
                self._loop.start(self._admin.registrations.follow(self._options.repository_poll_secs))
        await shared(from_repositories)
        await self._carried.load_models(self._predecessor)
        await self._admin.rollouts.restore()

    def _log_models(self) -> None:
        """Log how every model's load has ended. Raises _CannotServeError where a failed load ends the server."""
        versions = self._models.versions
        _log.info(log.table(("Model", "Version", "Status"), [version.status() for version in versions]))
        num_failures = sum(version.is_failure for version in versions)
        if num_failures and self._options.exit_on_error:
            raise _CannotServeError("error: creating server", no_models_error())
        _log.info(
            "%d model versions, %d instances, %.0f MiB of shared memory; large payloads may take %d MiB more, "
            "%.0f MiB of memory are available",
            len(versions) - num_failures,
            sum(version.num_instances_up for version in versions),
            self._star.nbytes / 2**20,
            self._options.shm_oversize_mib,
            available_nbytes() / 2**20,
        )

    async def _stop(self) -> None:
        """Drain the server: front ends end first, as they hold accepted requests; then workers; then the rest."""
        is_handed_over = self._upgrade.handed_over.done()
        upgrade_ends = self._loop.begin(self._upgrade.close())
        if not is_handed_over:
            self._service.stopping(self._models.versions)
        # Another server of an upgrade runs, which may listen on the same sockets or on others: the new one or, if this
        # server ends before it has taken over, the old one.
        has_sibling = is_handed_over or (self._predecessor is not None and self._predecessor.is_the_server)
        self._guests.close(has_sibling=has_sibling)
        # Front ends of a server that has been replaced answer whatever still reaches them: none of it need be refused.
        self._star.send_to_guests(to_client.ServerStopping())
        stopping = () if is_handed_over else (to_client.ServerStopping(),)
        self._clients.announce_ending(*stopping, to_client.ConnectionsEnding())
        await self._front_ends.stop(has_sibling=has_sibling)
        await self._admin.registrations.snapshots.save_last()
        self._drained.set_result(None)
        await self._guests.await_end()  # the last front end has ended: no other request is open
        _log.info("All models are stopped, unloading models")
        await self._models.stop()
        await self._foundation.mps.stop()
        await self._observation.tracing.tracer.close()  # after the last front end: it sends the last traces
        self._zygotes.stop()
        await self._admin.repository.close()
        await self._batchers.stop()  # after the workers: the batcher forwards their last answers
        for reader in self._observation.ring_readers:  # last, so that nothing that batchers left in rings is lost
            await reader.close()
        await shared(upgrade_ends)
        if self._predecessor is not None:  # when the main process ends, systemd kills the old server, too
            await self._predecessor.await_end(self._options.exit_timeout_secs)

    # --- joining ---

    def _accept(self) -> None:
        try:
            accepted = self._control.accept()
        except OSError as error:
            _log.error("no process can join: %s; it is tried again in %g s", explain(error), ACCEPT_AGAIN_S)
            self._loop.pause(self._control.fileno(), ACCEPT_AGAIN_S)
            return
        if accepted is None:
            return
        channel, pid = accepted
        member = Member(self._loop, channel, pid, self._star.acknowledgements)
        self._members.add(member)
        member.listen_only(self.join_handlers(member))
        member.start()

    def join_handlers(self, member: Member) -> Handlers:
        """The handlers of the first message of each kind of process."""
        start, (comparator, recorder) = self._loop.start, self._observation.ring_readers
        return table(
            on(from_batcher.BatcherConnected, lambda _message: self._batchers.join(member)),
            on(from_worker.WorkerConnected, lambda message: self._roster.join(message.instance, member)),
            on(from_client.FrontEndConnected, lambda _message: start(self._clients.join_front_end(member))),
            on(from_client.CallerConnected, lambda _message: start(self._clients.join_caller(member))),
            on(to_poller.PollerConnected, lambda _message: self._admin.repository.join(member)),
            on(to_tracer.TracerConnected, lambda _message: self._observation.tracing.tracer.join(member)),
            on(upgrade.NewServerConnected, lambda message: self._upgrade.join(member, message)),
            on(upgrade.UpgradeWanted, lambda _message: self._upgrade.on_command(member)),
            on(ComparatorConnected, lambda _message: comparator.join(member)),
            on(RecorderConnected, lambda _message: recorder.join(member)),
        )

    def _join_batcher(self, member: Member) -> None:
        """Activate a batcher; each but the first is sent what its predecessor had. Raises where a later one cannot have
        its memory."""
        member.listen(self.batcher_handlers)
        if self._star.has_had_batcher:
            self._join_memory(member)
            self._models.introduce()
            serves = self._star.introduce()
            self._models.introduce_retiring()
            self._loop.start(self._guests.disconnect_late(member, serves))
            return
        try:
            self._join_memory(member)
        except (OutOfSharedMemoryError, OSError) as error:
            self._has_memory.set_exception(error)
        else:
            self._has_memory.set_result(None)

    def _join_memory(self, batcher: Member) -> None:
        """Send a batcher its memory and rings, before it is sent models. Raises OutOfSharedMemoryError or OSError."""
        self._star.join_batcher(batcher)
        for each in self._observation.ring_readers:
            each.join_batcher(batcher)

    def _gives_up(self, error: Exception) -> bool:
        """Handle an error that leaves the server without a resource: before the server serves, log it and end the
        server. Returns True in that case."""
        if not (self._is_serving or self._failed.done()):
            _log.error("%s", error)
            self._failed.set_result(None)
        return not self._is_serving

    def _on_distrusted(self, message: from_batcher.ProcessDistrusted) -> None:
        _log.error("the process with segment %d has written unreadable records, and is no longer served", message.owner)
        instance, client = self._roster.by_owner(message.owner), self._star.clients.get(message.owner)
        if instance is not None:
            instance.kill()
        elif client is not None and (client.is_guest or not client.member.kill()):
            client.member.hang_up()

    def _on_worker_retired(self, message: from_batcher.WorkerRetired) -> None:
        retired = self._roster.by_owner(message.owner)
        if retired is not None:
            retired.stop()

    async def _gauges(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        """The supervisor's figures for /metrics, beside the batcher's."""
        measuring = self._loop.begin(self._foundation.memory.measure([each.pid for each in self._roster], self._loop))
        await self._roster.report_metrics(self._foundation.context)
        measured = await measuring
        figures = gauges(self._roster, self._star, max(0, self._batchers.num_active - 1), time.monotonic_ns())
        figures |= {"custom": self._foundation.metrics.values(), "certificates": dict(self._certificates.expiries)}
        figures |= {"memory": memory_of_models(self._roster, measured), "rollouts": self._admin.rollouts.figures()}
        lost = self._observation.recording.recorder.num_lost
        return {**figures, "shadows": self._admin.shadows.figures(), "num_records_lost": lost}

    def _send_settings(self, client: Participant) -> None:
        self._observation.tracing.send_to(client)
        self._regions.send_to(client)
        self._key_file.send_to(client)

    def _on_hup(self) -> None:
        if self._is_serving:
            self._reload.on_hup()
        else:
            self._is_hup_due = True

    def _on_models_changed(self) -> None:
        self._service.on_models_changed(self._models.versions)
        self._admin.shadows.on_models_changed()

    # --- unexpected errors that belong to no smaller failure domain ---

    def contain(self, error: Exception) -> None:
        """Let the server go on after an error that no smaller domain has contained, unless there are too many."""
        now_s = self._loop.now_s()
        self._faults_s = [fault_s for fault_s in self._faults_s if now_s - fault_s <= FAULTS_WITHIN_S] + [now_s]
        if not self._is_serving or len(self._faults_s) > MAX_FAULTS:
            _log.error("the server ends: %s", "it cannot start" if not self._is_serving else f"again, {error!r}")
            if not self._failed.done():
                self._failed.set_result(None)


class _CannotServeError(Exception):
    """The reason why the server ends before it serves, in the words of Triton's start-up."""

    def __init__(self, what: str, error: ShoalError) -> None:
        super().__init__(f"{what}: {index_reason(error).replace(': ', ' - ', 1)}")
