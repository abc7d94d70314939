"""The batcher's loop: waits for its bells, then has the exchange handle the records that came.

One thread, one epoll: a bell of each client and each worker, which says whose ring to look into, and the control
connection. Segments and bells arrive as descriptors over the control connection and are acknowledged once mapped. The
supervisor announces all clients and workers to a dead batcher's successor, which reads a client's ring only after that
client has sent its open requests again.
"""

import select
import time
from typing import TYPE_CHECKING, Final

from shoal import log
from shoal.batcher.bells import Bells
from shoal.batcher.cached_responses import CachedResponses
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.exchange import Exchange
from shoal.batcher.finished_requests import recent_of_all
from shoal.batcher.guests import is_fixed
from shoal.batcher.peers import ClientPeer, ScheduledModel, WorkerPeer
from shoal.batcher.recording import ModelRecording
from shoal.batcher.response_order import keeps_order
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.shared_answers import SharedAnswers
from shoal.cache_settings import RedisSettings
from shoal.control import Channel
from shoal.ledger import ledger_message
from shoal.messages import to_batcher
from shoal.messages.from_batcher import FinishedRequestsListed, ModelExplained
from shoal.messages.message import Handlers, Kinds, close_descriptors, on, table
from shoal.messages.shared import LedgerWanted, LogChanged, Ping, PoisonFound, SegmentGone
from shoal.model_config.gpu_tensors import gpu_of_inputs
from shoal.model_config.model_metrics import first_response_bounds
from shoal.model_config.rate_limiter import Demand
from shoal.model_config.response_cache import enables_response_cache
from shoal.model_config.signature import Signature
from shoal.reasons import Reason
from shoal.recording_settings import RecordRule
from shoal.shadow import ShadowRule
from shoal.shm.byte_ring import ByteRingWriter
from shoal.shm.counters import CounterTable
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.layout import LayoutError
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.spinning import SpinningPoller

if TYPE_CHECKING:
    from shoal.batcher.redis_connection import RedisConnection

#: Longest sleep, after which all rings are read. No work is due then; the bound limits the cost of a lost wake-up (none
#: is known).
MAX_SLEEP_S = 10.0
#: How often (ns) all rings are read while there is work, since most RELEASEs ring no bell (ours).
LOOK_NS = 1_000_000_000
#: How often a full ring is checked for room, since reading a ring rings no bell; and how often a worker with several
#: batches is checked for answers, since it rings only at the end of an execution that may be long (ours).
SHORT_SLEEP_S: Final = 0.001

#: Shorter sleeps are timed in microseconds: epoll rounds up to whole milliseconds, longer than many a batch takes.
FINE_SLEEP_S: Final = 0.01
#: Most events per epoll call (epoll's default makes room for a thousand each time); further events come with the next
#: call.
MAX_EVENTS: Final = 64
#: With more open requests than this the batcher does not spin: the requests wait for their models, and the batcher
#: wakes rarely.
SPINS_BESIDE: Final = 1


class Batcher:
    """The batcher's loop and its handlers of control messages; requests are handled by the exchange."""

    def __init__(self, channel: Channel, settings: to_batcher.BatcherActivated) -> None:
        self._channel = channel
        self._settings = settings
        self._bell = bell = Doorbell(settings.bell)
        self._counters = counters = CounterTable(Segment.attach(settings.counters, populate=False))
        self._limiter = None if settings.rate_limits is None else RateLimiter(settings.rate_limits)
        self._exchange = Exchange(
            wall_offset_ns(), settings.max_in_flight, self._limiter, settings.deadline_ns, settings.poison_refusal_ns
        )
        self.handlers = self._make_handlers()
        self._kinds = Kinds(*self.handlers)
        self._poller = select.epoll()
        self._spinning = SpinningPoller(self._poller, settings.spin_ns) if settings.spin_ns else None
        redis = settings.redis
        self._redis = None if redis is None else _connection(redis, self._poller, bell)
        if settings.cache_bytes:
            shared = None if self._redis is None else SharedAnswers(self._redis)
            self._exchange.enable_cache(counters.cache_figures(settings.cache_bytes), time.monotonic_ns, shared)
        # Changed by control messages: the bells by which the batcher wakes clients, by owner id; the bells that peers
        # ring; workers that are mapped but not ready yet; whether a dead batcher's requests are still being taken over.
        self._bells: dict[int, Doorbell | GuestBell] = {}
        self._rung = Bells(self._poller)
        self._starting: dict[int, WorkerPeer] = {}
        self._is_taking_over = settings.is_successor
        #: A model is recorded by the first rule that names it.
        self._record_rules: list[RecordRule] = []
        self._shadow_rules: list[ShadowRule] = []
        self._names: dict[int, str] = {}  # of models, by id

    def _make_handlers(self) -> Handlers:
        """The handlers of the supervisor's messages."""
        return table(
            on(to_batcher.Resume, self._on_resume),
            on(to_batcher.BatcherMemoryMade, self._on_memory),
            on(to_batcher.ClientJoined, self._on_client),
            on(to_batcher.ClientCaughtUp, self._on_client_caught_up),
            on(to_batcher.ClientLeft, self._on_client_left),
            on(to_batcher.ModelAdded, self._on_model),
            on(to_batcher.InstanceGroupsChanged, self._on_groups),
            on(to_batcher.ModelFailed, self._on_model_failed),
            on(PoisonFound, self._on_poison_found),
            # The step that follows reads clients' rings before it checks whether any request to the model is left.
            on(to_batcher.RetireModel, lambda message: self._exchange.retire_model(message.model_id)),
            on(to_batcher.ModelRemoved, self._on_model_removed),
            on(to_batcher.EnsembleAdded, self._on_ensemble),
            on(to_batcher.EnsembleRelinked, self._on_relinked),
            on(to_batcher.PayloadAnnounced, self._on_payload),
            on(SegmentGone, lambda message: self._exchange.blocks.remove(message.owner)),
            on(to_batcher.WorkerJoined, self._on_worker),
            on(to_batcher.WorkerReady, self._on_worker_ready),
            on(to_batcher.WorkerCaughtUp, lambda message: self._exchange.succession.expect_worker(message.owner)),
            on(to_batcher.RetireWorker, lambda message: self._exchange.retire_worker(message.owner)),
            on(to_batcher.WorkerDied, self._on_worker_died),
            on(to_batcher.ExplainModel, self._on_explain),
            on(to_batcher.ListFinishedRequests, self._on_list),
            on(to_batcher.SplitChanged, lambda message: self._exchange.change_split(message, time.monotonic_ns())),
            on(to_batcher.CountSplit, self._on_count_split),
            on(to_batcher.CountMirrored, self._on_count_mirrored),
            on(to_batcher.RecordingMade, self._on_recording_made),
            on(to_batcher.RecordingChanged, self._on_recording_changed),
            on(to_batcher.ComparisonRingMade, self._on_comparison_ring),
            on(to_batcher.ShadowsChanged, self._on_shadows_changed),
            on(LedgerWanted, self._on_ledger),
            on(LogChanged, lambda message: log.configure(**message.settings)),
            on(Ping, lambda _message: None),  # the acknowledgement alone matters: it shows that this loop runs
        )

    def run(self) -> None:
        """Serve until the supervisor closes the connection; raises the channel's error (control.GONE) then."""
        poller, owners, guests, redis = self._poller, self._rung.owners, self._rung.guests, self._redis
        exchange, control_fd, busy = self._exchange, self._channel.fileno(), self._exchange.busy
        spinning, look_ns, events = self._spinning, 0, list[tuple[int, int]]()
        clock_ns = time.monotonic_ns
        poller.register(self._bell.fd, select.EPOLLIN | select.EPOLLET)
        poller.register(control_fd, select.EPOLLIN)
        while True:
            deadline_ns = exchange.next_deadline_ns()
            sleep_s = SHORT_SLEEP_S if exchange.has_backlog else MAX_SLEEP_S
            if deadline_ns is not None:
                sleep_s = min(sleep_s, max(0, deadline_ns - clock_ns()) / 1e9)
                if 0 < sleep_s < FINE_SLEEP_S:
                    select.select((poller,), (), (), sleep_s)
                    sleep_s = 0.0
            if busy and (events or exchange.may_miss_answers(clock_ns())):
                sleep_s = min(sleep_s, SHORT_SLEEP_S)
            if spinning is not None and sleep_s and exchange.num_open <= SPINS_BESIDE:
                events = spinning.poll(sleep_s, MAX_EVENTS)
            else:
                events = poller.poll(sleep_s, MAX_EVENTS)
            rung_by = []
            is_for_all = not events and sleep_s >= MAX_SLEEP_S
            for fd, _ in events:
                if (owner := owners.get(fd)) is not None:
                    rung_by.append(owner)
                    if guests and fd in guests:
                        guests[fd].clear()
                elif redis is not None and fd == redis.fd:
                    redis.is_ready = True
                else:  # the supervisor, or the batcher's own bell: read the rings of all peers, too
                    is_for_all = True
                    if fd == control_fd:
                        self._receive()
            if self._is_taking_over:
                continue
            now_ns = clock_ns()
            exchange.step(now_ns, None if is_for_all else rung_by)
            if now_ns >= look_ns:  # a second step, of all rings, so that no request waits for it
                exchange.step(now_ns)
                for model in exchange.models.values():
                    model.finished.turn(now_ns)
                exchange.reports += exchange.mirror.counts()
                exchange.wall.offset_ns = wall_offset_ns()
                look_ns = now_ns + LOOK_NS
            if exchange.reports:
                self._report()

    def _receive(self) -> None:
        message, seq = self._channel.receive(self._kinds)
        self.handlers[type(message)](message)
        self._channel.acknowledge(seq)

    def _report(self) -> None:
        for message in self._exchange.reports:
            self._channel.send(message)
        self._exchange.reports.clear()

    def _on_resume(self, _message: to_batcher.Resume) -> None:
        self._is_taking_over = False
        self._exchange.resume(time.monotonic_ns())

    def _on_client(self, message: to_batcher.ClientJoined) -> None:
        owner, is_guest = message.owner, message.is_guest
        bell = GuestBell(message.bell) if is_guest else Doorbell(message.bell)
        self._bells[owner] = bell
        try:
            client = ClientPeer(
                owner,
                Segment.attach(message.link),
                SegmentView.attach(message.segment),
                bell,
                is_guest=is_guest,
                is_front_end=not (is_guest or message.is_caller),
            )
        except LayoutError:
            self._exchange.distrust(owner)  # the guest has overwritten its segment before a successor could map it
            return
        self._rung.add(owner, bell if message.clients_bell is None else Doorbell(message.clients_bell))
        if message.is_late:
            client.reader.skip()
            self._exchange.succession.add_late(client)
        else:
            self._exchange.clients[owner] = client

    def _on_client_caught_up(self, message: to_batcher.ClientCaughtUp) -> None:
        self._exchange.succession.receive_late(message.owner, time.monotonic_ns())

    def _on_client_left(self, message: to_batcher.ClientLeft) -> None:
        self._exchange.remove_client(message.owner, time.monotonic_ns())
        self._rung.remove(message.owner)
        bell = self._bells.pop(message.owner, None)
        if bell is not None:
            bell.close()

    def _on_model(self, message: to_batcher.ModelAdded) -> None:
        scheduler = from_config(message.config, self._settings.max_queue_size, self._settings.latency_target_ms)
        if self._limiter is not None:
            scheduler = RateLimitedScheduler(scheduler, self._limiter)
        model = ScheduledModel(
            message.model_id,
            scheduler,
            self._counters.row(message.row, is_restored=self._is_taking_over),
            max_rows=max(1, message.config["max_batch_size"]),
            is_fixed=is_fixed(message.config),
            may_run_again=message.may_run_again,
            keeps_order=keeps_order(message.config),
            signature=Signature.from_config(message.config),
            version=message.version,
            groups=message.groups,
            sharing=self._sharing(message),
            has_priorities=message.config.get("dynamic_batching", {}).get("priority_levels", 0) > 0,
            gpu=gpu_of_inputs(message.config),
        )
        if self._settings.counts_first_responses:
            model.row.first_response_bounds = first_response_bounds(message.config)
        self._exchange.models[model.id] = model
        self._name(model, message.config["name"])

    def _on_groups(self, message: to_batcher.InstanceGroupsChanged) -> None:
        model = self._exchange.models[message.model_id]
        model.groups = message.groups
        self._record(model)

    def _on_memory(self, message: to_batcher.BatcherMemoryMade) -> None:
        # A cache's memory is reserved as the cache fills.
        self._exchange.ensembles.connect(Segment.attach(message.segment, populate=self._exchange.cached is None))

    def _on_ensemble(self, message: to_batcher.EnsembleAdded) -> None:
        ensemble = Ensemble(
            message.model_id,
            message.config,
            self._counters.row(message.row, is_restored=self._is_taking_over),
            version=message.version,
            models=message.models,
            may_run_again=message.may_run_again,
            sharing=self._sharing(message),
            decoupled=message.decoupled,
        )
        if self._settings.counts_first_responses:
            ensemble.row.first_response_bounds = first_response_bounds(message.config)
        self._exchange.add_ensemble(ensemble)
        self._name(ensemble, message.config["name"])

    def _on_recording_made(self, message: to_batcher.RecordingMade) -> None:
        ring = ByteRingWriter(Segment.attach(message.segment, populate=False), SegmentView.attach(message.recorders))
        self._exchange.record(ring)

    def _on_recording_changed(self, message: to_batcher.RecordingChanged) -> None:
        self._record_rules = [RecordRule(*rule) for rule in message.rules]
        for model in self._exchange.models.values():
            self._record(model)

    def _name(self, model: ScheduledModel, name: str) -> None:
        self._names[model.id] = name
        if self._record_rules:
            self._record(model)
        if self._shadow_rules:
            self._bind_shadows()

    def _record(self, model: ScheduledModel) -> None:
        """Start or stop recording a model's requests, as the rules say."""
        recording, name = self._exchange.recording, self._names[model.id]
        rule = next((rule for rule in self._record_rules if rule.concerns(name)), None)
        if recording is None or rule is None:
            model.recording = None
        else:
            model.recording = ModelRecording(recording, model, name, rule.sample)
        model.note_ends()

    def _on_comparison_ring(self, message: to_batcher.ComparisonRingMade) -> None:
        segment, comparators = Segment.attach(message.segment, populate=False), SegmentView.attach(message.comparators)
        self._exchange.mirror.connect(ByteRingWriter(segment, comparators))

    def _on_shadows_changed(self, message: to_batcher.ShadowsChanged) -> None:
        self._shadow_rules = [ShadowRule(*rule) for rule in message.rules]
        self._bind_shadows()

    def _bind_shadows(self) -> None:
        self._exchange.mirror.bind(self._shadow_rules, self._names)

    def _on_relinked(self, message: to_batcher.EnsembleRelinked) -> None:
        ensemble, cached = self._exchange.models.get(message.model_id), self._exchange.cached
        self._exchange.ensembles.relink(
            message.model_id, message.models, message.decoupled, may_run_again=message.may_run_again
        )
        is_shared = ensemble is not None and ensemble.sharing is cached
        if cached is not None and is_shared:
            cached.name(message.model_id, message.revision, time.monotonic_ns())

    def _sharing(self, message: to_batcher.ModelAdded | to_batcher.EnsembleAdded) -> CachedResponses | None:
        cached = self._exchange.cached
        if cached is None or not enables_response_cache(message.config):
            return None
        cached.name(message.model_id, message.revision, time.monotonic_ns())
        return cached

    def _on_model_failed(self, message: to_batcher.ModelFailed) -> None:
        self._exchange.fail_model(message.model_id, time.monotonic_ns())

    def _on_poison_found(self, message: PoisonFound) -> None:
        if (model := self._exchange.models.get(message.model_id)) is not None and self._exchange.poison is not None:
            self._exchange.poison.restore(model, message)

    def _on_model_removed(self, message: to_batcher.ModelRemoved) -> None:
        self._exchange.remove_model(message.model_id, time.monotonic_ns())
        self._names.pop(message.model_id, None)
        if self._shadow_rules:
            self._bind_shadows()

    def _on_payload(self, message: to_batcher.PayloadAnnounced) -> None:
        blocks = self._exchange.blocks
        try:
            blocks.add_payload(message.owner, message.writer, SegmentView.attach(message.segment))
        except LayoutError:
            return  # a guest has overwritten the segment
        if message.is_result:
            blocks.add_result(message.owner, message.writer)

    def _on_worker(self, message: to_batcher.WorkerJoined) -> None:
        model = self._exchange.models.get(message.model_id)
        if model is None:  # the model is gone; its worker, announced to a successor, has died
            close_descriptors(message)
            return
        link, segment = Segment.attach(message.link), SegmentView.attach(message.segment)
        demand = Demand.from_message(message.demand) if self._limiter is not None else None
        worker = WorkerPeer(
            message.owner, link, segment, Doorbell(message.bell), model,
            instance=message.instance, is_limited=bool(demand and demand.resources),
        )  # fmt: skip
        if self._limiter is not None and demand is not None:
            self._limiter.add(worker.owner, demand)
        if self._is_taking_over:
            worker.take_over()
        self._rung.add(worker.owner, Doorbell(message.workers_bell))
        self._starting[worker.owner] = worker

    def _on_worker_ready(self, message: to_batcher.WorkerReady) -> None:
        if (worker := self._starting.pop(message.owner, None)) is not None:
            self._exchange.add_worker(worker, time.monotonic_ns())

    def _on_worker_died(self, message: to_batcher.WorkerDied) -> None:
        owner = message.owner
        self._rung.remove(owner)
        worker = self._starting.pop(owner, None) or self._exchange.workers.get(owner)
        if self._limiter is not None:
            self._limiter.remove(owner)
        if message.is_repeated:
            self._exchange.succession.expect_repeated_death(owner)
        self._exchange.remove_worker(owner, time.monotonic_ns(), Reason(message.reason), message.detail)
        # The dead worker's last answers are sent before the acknowledgement, after which its segment may be unmapped.
        self._exchange.step(time.monotonic_ns())
        if worker is not None:
            worker.bell.close()

    def _on_explain(self, message: to_batcher.ExplainModel) -> None:
        if (model := self._exchange.models.get(message.model_id)) is not None:
            self._channel.send(ModelExplained(message.number, model.id, model.scheduler.explain()))

    def _on_list(self, message: to_batcher.ListFinishedRequests) -> None:
        asked = set(message.model_ids)
        logs = [model.finished for model in self._exchange.models.values() if model.id in asked]
        listed = recent_of_all(logs, message.limit, time.monotonic_ns())
        self._channel.send(FinishedRequestsListed(message.number, *listed))

    def _on_count_split(self, message: to_batcher.CountSplit) -> None:
        if (figures := self._exchange.splits.figures(message.model_id, time.monotonic_ns())) is not None:
            self._channel.send(figures)

    def _on_count_mirrored(self, _message: to_batcher.CountMirrored) -> None:
        for counts in self._exchange.mirror.counts():
            self._channel.send(counts)

    def _on_ledger(self, _message: LedgerWanted) -> None:
        exchange = self._exchange
        if not self._is_taking_over:
            exchange.step(time.monotonic_ns())  # frees what clients have released, before workers count their blocks
        own, num_cached = exchange.blocks.own, 0 if exchange.cached is None else exchange.cached.num_kept
        acquired, released = (0, 0) if own is None else own.counts
        slots = [peer.reader.counts for peer in (*exchange.clients.values(), *exchange.workers.values())]
        self._channel.send(
            ledger_message(
                blocks_acquired=acquired - num_cached,
                blocks_released=released,
                slots_acquired=sum([filled for filled, _ in slots]),
                slots_released=sum([given_back for _, given_back in slots]),
                requests_open=exchange.num_open,
                requests_running=sum([len(worker.missing) for worker in exchange.workers.values()]),
                replies_held=exchange.holders.num_held - num_cached,
                blocks_held=len(exchange.holders) - num_cached,
                blocks_cached=num_cached,
            )
        )


def wall_offset_ns() -> int:
    """Wall clock minus monotonic clock, as it is now."""
    return time.time_ns() - time.monotonic_ns()


def _connection(settings: RedisSettings, poller: select.epoll, bell: Doorbell) -> "RedisConnection":
    # imports ssl, which takes 40 ms and 1 MiB: only in servers that share answers through Redis
    from shoal.batcher.redis_connection import RedisConnection

    return RedisConnection(settings, poller, bell.ring)
