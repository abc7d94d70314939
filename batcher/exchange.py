"""The centre of the star: accepts requests of clients, sends batches to workers, and replies to clients.

Runs in the batcher. The exchange sees records only, never a tensor. It reads no clock and never waits: `step` is given
the time and handles all records that are there. How a request ends is decided in `open_requests`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from shoal.batcher.arrivals import Arrivals
from shoal.batcher.blocks import Blocks
from shoal.batcher.cached_responses import CachedResponses
from shoal.batcher.dispatch import Dispatch
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.ensembles import Ensembles
from shoal.batcher.executions import Executions
from shoal.batcher.guests import over_limit
from shoal.batcher.holders import Holders
from shoal.batcher.late_clients import LateClients
from shoal.batcher.mirror import Mirror
from shoal.batcher.open_requests import MAX_BACKLOG
from shoal.batcher.peers import ClientPeer, Peer, ScheduledModel, WorkerPeer, flush_all
from shoal.batcher.poison import Poison
from shoal.batcher.recording import Recording
from shoal.batcher.retirement import Retirement
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.shared_answers import SharedAnswers
from shoal.batcher.shortages import Shortages
from shoal.batcher.split_requests import SplitRequests
from shoal.batcher.splits import Splits
from shoal.batcher.statistics import OLDEST_QUEUED_NS, PENDING_COUNT, WallClock, compute_times
from shoal.batcher.succession import Succession
from shoal.fault import IS_ARMED, reached
from shoal.messages.from_batcher import ProcessDistrusted
from shoal.messages.message import Message
from shoal.messages.to_batcher import SplitChanged
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.byte_ring import ByteRingWriter
from shoal.shm.counters import CacheFigures
from shoal.shm.layout import CANCEL, DONE, NUMBER_BITS, OWNER_SHIFT, RELEASE, REQUEST, RESPONSE, D, LayoutError, R, W
from shoal.shm.ring import Record

_NUMBER: Final = R.NUMBER
_OTHERS: Final = R.HEADER  # in RELEASE
_MAX_NUMBER: Final = (1 << NUMBER_BITS) - 1
_REF: Final = D.BLOCK  # in every record of a worker; 0 if it names no block


class Exchange:
    """All peers and models, and the handling of every record that a peer sends."""

    def __init__(
        self, wall_offset_ns: int, max_in_flight: int, limiter: RateLimiter | None = None, deadline_ns: int = 0,
        poison_refusal_ns: int = 0,
    ) -> None:  # fmt: skip
        """`wall_offset_ns`: wall clock minus monotonic clock now. `deadline_ns`: time limit of every request, 0 = none.
        `poison_refusal_ns`: how long requests equal to a poisonous one are refused, 0 = never."""
        self.wall = WallClock(wall_offset_ns)
        self._max_in_flight = max_in_flight  # per client; only a guest can exceed this limit
        # Changed by the add_, retire_ and remove_ methods, called by the control plane. Clients and workers are found
        # by owner id, models by model id.
        self.clients: dict[int, ClientPeer] = {}
        self.workers: dict[int, WorkerPeer] = {}
        self.models: dict[int, ScheduledModel] = {}
        # Changed by step and by peers' deaths: the holders of blocks, peers with unpublished records, and other tables.
        self.holders = Holders()
        self._written_workers: set[WorkerPeer] = set()
        self._written_clients: set[ClientPeer] = set()
        self._late = LateClients(self.holders)
        self.blocks = Blocks(self.clients, self.workers, self._written_workers, self._late)
        self._counted: set[ScheduledModel] = set()
        self.splits = Splits(self.models, self.workers, self._counted)
        self._requests = SplitRequests(self.holders, self._written_clients, self._counted, self._late, self.splits)
        self._open = self._requests.by_key
        self._dispatch = Dispatch(
            self.models, self.workers, self._requests, self._written_workers, self._counted, limiter
        )
        self._awake, self.busy = self._dispatch.awake, self._dispatch.busy
        self.splits.wake_later = self._dispatch.deadlines.set
        self._executions = Executions(self._requests, self._awake, self.wall)
        self._shortages = Shortages(self.clients, self.holders, self.blocks, self._written_clients)
        self._arrivals = Arrivals(
            self.models, self.workers, self._requests, self._counted, self._awake,
            deadline_ns=deadline_ns, send_cancel=self._send_cancel,
        )  # fmt: skip
        self.succession = Succession(
            self.clients, self.workers, self.busy, self._requests, self._arrivals, self._late, self.blocks,
            self._drain_client,
        )  # fmt: skip
        self.ensembles = Ensembles(
            self.models,
            self._requests,
            self.holders,
            self.blocks,
            wall=self.wall,
            send_cancel=self._send_cancel,
            on_shortage=self._on_shortage,
        )
        self.cached: CachedResponses | None = None  # the response cache, with --cache-config
        self._read: list[Peer] = []  # peers whose records this step has read
        self._retirement = Retirement()
        self.reports: list[Message] = []  # to the supervisor; the loop sends them
        #: Finds requests that end their instances, and has equal requests refused; None if that is off.
        self.poison = (
            Poison(self._open, self.workers, self.blocks, self._requests.last_chances, poison_refusal_ns, self.reports)
            if poison_refusal_ns
            else None
        )
        self._requests.poison = self.poison
        self.recording: Recording | None = None  # the recording, with --record
        self.mirror = Mirror(
            self.clients, self.models, self.workers, self._requests, self.holders, self.blocks, self._written_clients,
            self.wall,
        )  # fmt: skip

    @property
    def num_open(self) -> int:
        """Number of requests accepted and not yet answered."""
        return len(self._open)

    # --- peers and models, announced by the supervisor ---

    def add_worker(self, worker: WorkerPeer, now_ns: int = 0) -> None:
        """Give batches to a worker that has loaded its model and mapped all segments."""
        self.workers[worker.owner] = worker
        worker.free_ns = now_ns
        worker.model.is_failed = False
        worker.model.scheduler.add_instance(worker.owner, num_running=worker.num_batches - worker.num_finished)
        if worker.held:
            self.succession.restore_sequences(worker, now_ns)
        self._awake[worker.model.id] = worker.model

    def enable_cache(
        self, figures: CacheFigures, clock_ns: Callable[[], int], shared: SharedAnswers | None = None
    ) -> None:
        """Enable the response cache. The batcher's own memory must be connected before a model is added."""
        requests, holders, blocks = self._requests, self.holders, self.blocks
        self.cached = CachedResponses(requests, holders, blocks, figures, clock_ns, shared)

    def record(self, ring: ByteRingWriter) -> Recording:
        """Record into this ring from now on. No effect for a model before its `recording` is set."""
        self.recording = Recording(ring, self.blocks, self._counted, self.wall)
        return self.recording

    def add_ensemble(self, ensemble: Ensemble) -> None:
        """Serve an ensemble: a model whose requests are answered by other models."""
        self.models[ensemble.id] = ensemble
        self.ensembles.add(ensemble)

    def retire_worker(self, owner: int) -> None:
        """Give a worker no further batches, and report the worker once its batches are answered."""
        worker = self.workers.get(owner)
        if worker is not None:
            worker.model.scheduler.remove_instance(owner)
            self._retirement.workers.add(worker)

    def remove_worker(self, owner: int, now_ns: int, reason: Reason = Reason.INSTANCE_DIED, detail: int = 0) -> None:
        """Forget a dead worker: answers that it has published are delivered, its other requests go to other
        instances or fail."""
        worker = self.workers.get(owner)
        if worker is None:
            return
        if reason is not Reason.DAMAGED:
            self._drain_worker(worker, now_ns)
        if self.workers.pop(owner, None) is None:
            return
        model = worker.model
        if model.sequences is not None:
            for queued in self._requests.not_begun(worker, reason):
                model.sequences.give_back(owner, queued)
        self.busy.pop(owner, None)
        self._written_workers.discard(worker)
        self._retirement.workers.discard(worker)
        model.scheduler.remove_instance(owner)
        self._requests.take_back(worker, reason, detail, now_ns)
        if model.split_id and not self.splits.is_up(model):
            self._requests.fall_back_queued(model, now_ns)
        self.ensembles.lose(self.blocks.lose(worker), reason, detail, model, now_ns)
        worker.forget_batches()
        if model.is_failed:
            self._requests.refuse_queued(model, Reason.MODEL_FAILED, now_ns)
        self._awake[model.id] = model

    def remove_client(self, owner: int, now_ns: int = 0) -> None:
        """Forget a dead client, its requests and the replies that it held."""
        client = self.clients.pop(owner, None) or self.succession.remove_late(owner, now_ns)
        if client is None:
            return
        self._written_clients.discard(client)
        self.mirror.forget_client(owner)
        for key, model in self._requests.forget(client):
            self._send_cancel(key, model)
        for ref in self.holders.release_owner(owner):
            self.blocks.free(ref)

    def change_split(self, message: SplitChanged, now_ns: int) -> None:
        """Divide a model's requests as a message says from now on. Requests queued for a canary that gets no more
        requests are executed by the stable version."""
        for canary in self.splits.change(message):
            self._requests.fall_back_queued(canary, now_ns)

    def retire_model(self, model_id: int) -> None:
        """Report a replaced model version once no request to it is queued or running."""
        model = self.models.get(model_id)
        if model is not None:
            self._retirement.models.add(model)

    def remove_model(self, model_id: int, now_ns: int) -> None:
        """Forget a model version; requests that are still queued are refused."""
        model = self.models.pop(model_id, None)
        if model is None:
            return
        self._requests.refuse_queued(model, Reason.NOT_READY, now_ns)
        self.ensembles.remove(model_id, now_ns)
        if self.cached is not None:
            self.cached.forget(model_id)
        self._retirement.models.discard(model)
        self._dispatch.forget(model_id)

    def fail_model(self, model_id: int, now_ns: int) -> None:
        """Refuse a model's waiting and new requests until an instance is ready, because all instances die again and
        again."""
        model = self.models.get(model_id)
        if model is not None:
            model.is_failed = True
            self._requests.refuse_queued(model, Reason.MODEL_FAILED, now_ns)

    def resume(self, now_ns: int) -> None:
        """Take over from a dead batcher: clients that are not late have sent their open requests and held replies
        again."""
        self.mirror.adopt(now_ns)
        self.succession.begin(now_ns)
        self.busy.update({owner: worker for owner, worker in self.workers.items() if worker.missing})
        # All models' figures are published anew: the dead batcher may have counted requests that do not wait any more.
        self._counted.update(self.models.values())
        # The dead batcher may have published a batch without ringing for it.
        for worker in self.workers.values():
            worker.must_ring = True
            self._written_workers.add(worker)
        self.step(now_ns)
        self.succession.end()
        if IS_ARMED:
            reached("resumed")

    # --- the loop's body ---

    def step(self, now_ns: int, rung_by: Iterable[int] | None = None) -> None:
        """Handle the records that are there, form batches, publish the written records and ring the peers that are to
        read them.

        `now_ns` is monotonic. `rung_by` are the owner ids of peers that have rung: only their rings and the rings of
        workers in `busy` are read and, while the batcher's own memory is short, the rings of all clients. None: the
        rings of all peers.
        """
        own = self.blocks.own
        if rung_by is None or not (own is None or own.is_roomy):
            self.look_at_clients(now_ns)
        if rung_by is None:
            for worker in tuple(self.workers.values()):
                self._drain_worker(worker, now_ns)
        else:
            for owner in rung_by:
                if owner in self.workers:
                    self._drain_worker(self.workers[owner], now_ns)
                elif owner in self.clients:
                    self._drain_client(self.clients[owner], now_ns)
            if self.busy:
                for worker in tuple(self.busy.values()):
                    if worker.reader.has_unread():
                        self._drain_worker(worker, now_ns)
        if self.cached is not None:
            self.cached.advance(now_ns)
        if self._dispatch.deadlines.due_ns:
            self._dispatch.wake_due(now_ns)
        while self._awake or not (self.ensembles.are_idle or self.ensembles.have_no_news):
            if not self.ensembles.are_idle:
                self.ensembles.advance(now_ns)
            self._dispatch.form_batches(now_ns)
        if self.mirror.is_busy:
            while self.mirror.step(now_ns):
                self._dispatch.form_batches(now_ns)
        # Workers first: executions take longest. Statistics before replies: a client that has its answer finds it
        # counted.
        if self._written_workers:
            flush_all(self._written_workers)
        if self.recording is not None and self.recording.noted:
            self.recording.write()
        for model in self._counted:
            scheduler, cells = model.scheduler, model.row.cells
            cells[OLDEST_QUEUED_NS] = oldest_ns = scheduler.oldest_ns()
            cells[PENDING_COUNT] = scheduler.pending if oldest_ns else 0
            model.row.publish()
        self._counted.clear()
        if self._written_clients:
            flush_all(self._written_clients)
        if self.mirror.is_busy and self.mirror.has_ended:
            self.mirror.compare()
            flush_all(self._written_workers)
            flush_all(self._written_clients)
        # Last: if the batcher dies before this, its successor must read these records again.
        for peer in self._read:
            peer.acknowledge()
        self._read.clear()
        if self._retirement.models or self._retirement.workers:
            in_use = self.ensembles.in_use | (set() if self.cached is None else self.cached.in_use)
            if self._late.has_front_end:
                in_use |= self.models.keys()  # the unread requests of a late client may be for any model
            self.reports += self._retirement.reports(self.workers.values(), in_use)

    @property
    def has_backlog(self) -> bool:
        """Whether replies wait for room in a client's ring. (For room in a worker's ring the batcher need not look: the
        worker rings at the end of its execution.)"""
        return bool(self._written_clients)

    def may_miss_answers(self, now_ns: int) -> bool:
        """Whether the ring of a busy worker may have an answer, or get one, without a ring of the bell."""
        return any(worker.may_answer_silently(now_ns) for worker in self.busy.values())

    def next_deadline_ns(self) -> int | None:
        """When `step` must run again though no bell rings, in monotonic ns; None: never."""
        deadlines = self._dispatch.deadlines
        earliest_ns = deadlines.next_ns() if deadlines.due_ns else None
        if self.cached is not None and (cached_ns := self.cached.deadline_ns) is not None:
            earliest_ns = cached_ns if earliest_ns is None else min(cached_ns, earliest_ns)
        if self.mirror.is_busy and (mirror_ns := self.mirror.next_deadline_ns()) is not None:
            earliest_ns = mirror_ns if earliest_ns is None else min(mirror_ns, earliest_ns)
        return earliest_ns

    # --- records from clients ---

    def look_at_clients(self, now_ns: int) -> None:
        """Read all clients' rings, for RELEASEs that rang no bell."""
        for owner, client in tuple(self.clients.items()):
            # a client may have been removed while another client's ring was read
            if client.reader.has_unread() and owner in self.clients:
                self._drain_client(client, now_ns)

    def _drain_client(self, client: ClientPeer, now_ns: int) -> None:
        try:
            for record in client.reader.read():
                kind = record[0]
                if record[_NUMBER] > _MAX_NUMBER:  # with such a number, the request's key would be another client's
                    raise LayoutError(f"client {client.owner} sent the number {record[_NUMBER]}")
                if kind == REQUEST:
                    self._arrivals.accept(client, record, now_ns)
                elif kind == RELEASE:
                    if ref := self.holders.release(client.first_key + record[_NUMBER], record[R.BLOCK]):
                        self.blocks.free(ref)
                    if record[_OTHERS]:
                        self._release_others(client, record)
                elif kind == CANCEL:
                    key = client.first_key + record[R.NUMBER]
                    model = self._requests.cancel(key, now_ns, is_sure=not record[R.MORE])
                    if model is not None:
                        self._send_cancel(key, model)
                elif kind == layout.HOLD and self._arrivals.is_resuming:
                    self.succession.hold(client, record)
                elif kind == layout.TRACE:
                    self._requests.trace(client, record)
                elif kind == layout.RETURN and client.is_front_end:
                    self.mirror.return_all(client)
                elif kind == layout.CHILD_REQUEST:
                    self._arrivals.accept_child(client, record, now_ns)
                else:
                    raise LayoutError(f"client {client.owner} sent a record of kind {kind}")
            if len(client.backlog) > 2 * MAX_BACKLOG:
                raise LayoutError(f"client {client.owner} asks, and takes no answers")
        except LayoutError:
            self.distrust(client.owner)
            return
        self._read.append(client)
        # If all clients together have more than their limit, at least one of them has, too.
        if len(self._open) > self._max_in_flight * len(self.clients):
            for owner in over_limit(self._open.values(), self._max_in_flight):
                if owner in self.clients:  # the client of ensembles' steps is in no table
                    self.distrust(owner)

    def _release_others(self, client: ClientPeer, record: Record) -> None:
        for number in record[_OTHERS:]:
            if not number:
                return
            if number > _MAX_NUMBER:
                raise LayoutError(f"client {client.owner} sent the number {number}")
            if ref := self.holders.release(client.first_key + number):
                self.blocks.free(ref)

    def distrust(self, owner: int) -> None:
        """Stop reading a client that has written an invalid record; the supervisor ends the client's process."""
        self.remove_client(owner)
        self.reports.append(ProcessDistrusted(owner))

    def _on_shortage(self, now_ns: int) -> None:
        """Ask clients to release responses of ensembles, whose headers fill the batcher's own memory."""
        if starver := self._shortages.ask_back_own(now_ns):
            self.distrust(starver)

    # --- records from workers, which user code may have written ---

    def _drain_worker(self, worker: WorkerPeer, now_ns: int) -> None:
        try:
            records = worker.reader.read()
            if not records:
                return
            self._counted.add(worker.model)
            unheld = self._handle_records(worker, records, now_ns)
        except LayoutError:
            self.remove_worker(worker.owner, now_ns, Reason.DAMAGED)
            self.reports.append(ProcessDistrusted(worker.owner))
            return
        for ref in set(unheld) if unheld else ():
            if not self.holders.is_held(ref):
                self.blocks.free(ref)
        if self.busy and not worker.missing:
            self.busy.pop(worker.owner, None)
        self._read.append(worker)

    def _handle_records(self, worker: WorkerPeer, records: Sequence[Record], now_ns: int) -> list[int]:
        """Handle a worker's records. Returns the worker's blocks that they name and that may have no holder. Raises
        LayoutError for a record that names another process's block; that record changes nothing."""
        if self._late.are_any:
            self._late.note_blocks(records)
        unheld, owner = list[int](), worker.owner
        for record in records:
            kind, ref = record[0], record[_REF]
            is_own = ref != 0 and (
                ref >> OWNER_SHIFT == owner or self.blocks.check_named(worker, ref, may_be_gone=kind == layout.HAVE)
            )
            if kind == DONE:  # a request's only response, or the end of its responses
                _, key, _, status, _, header, start, input_end, output_start, end, _, _, _, _, _, _ = record
                running = worker.missing.pop(key, None)
                if running is None:
                    if is_own:
                        unheld.append(ref)
                    continue
                if end != running.end_ns:  # computed once for all requests of a batch
                    running.end_ns = end
                    running.compute = compute_times(start, input_end, output_start, end, now_ns)
                is_held = self._requests.answer(key, status, ref, header, running.compute, now_ns, 0, running)
                if is_own and not is_held:
                    unheld.append(ref)
                running.num_missing = num_missing = running.num_missing - 1
                if num_missing:
                    worker.partly_answered = running
                else:
                    if worker.lacks_memory:
                        worker.end_shortage(ref)
                    self._executions.finish(worker, running, running.compute, now_ns)
                if IS_ARMED:
                    reached("answered")
                continue
            if is_own:
                unheld.append(ref)
            if kind == RESPONSE:
                if (model := self._respond(worker, record, now_ns)) is not None:
                    self._send_cancel(record[D.KEY], model)
            elif kind == layout.READY:
                self._executions.ready(worker, record, now_ns)
            elif kind == layout.RESCHEDULE:
                self._executions.reschedule(worker, record, now_ns)
            elif kind == layout.SEQUENCE_END:
                if worker.model.sequences is not None:
                    worker.model.sequences.end(worker.owner, record[D.KEY])
                    self._awake[worker.model.id] = worker.model
            elif kind == layout.WANT:
                self.look_at_clients(now_ns)
                worker.must_ring = True
                self._written_workers.add(worker)
                if self.mirror.is_busy and record[W.URGENCY] in (layout.ROOM, layout.ROOM_NOW):
                    self.mirror.give_back(worker)
                if guest := self._shortages.ask_back(worker, record[W.URGENCY], now_ns):
                    self.distrust(guest)
        return unheld

    def _respond(self, worker: WorkerPeer, record: Record, now_ns: int) -> ScheduledModel | None:
        """Handle a RESPONSE: the request stays open at its worker.

        Returns the request's model if this response makes it fail, so that the worker must be sent a CANCEL; else None.
        """
        _, key, _, status, ref, header, *_ = record
        if key not in worker.missing:
            return None
        worker.note_overlap()
        if worker.lacks_memory:
            worker.end_shortage(ref)
        return self._requests.respond(key, status, ref, header, now_ns)

    # --- from clients to workers ---

    def _send_cancel(self, key: int, model: ScheduledModel) -> None:
        """Send CANCEL to the worker that has the request, or to those that have its steps; a worker that cannot stop
        ignores the record. After a take-over, all workers whose executions overlap get it, since a successor does not
        know which of them has the request."""
        for step_key, step_model in self.ensembles.running(key, model):
            self._send_cancel(step_key, step_model)
        for worker in [worker for worker in self.workers.values() if worker.model is model]:
            if key in worker.missing or (self._arrivals.is_resuming and worker.overlaps):
                worker.cancelled.add(key)
                self._written_workers.add(worker)
