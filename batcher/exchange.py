"""The centre of the star: takes requests from clients, hands batches to workers, answers clients. Runs in the batcher.

It sees records only, never a tensor. It reads no clock and waits for nothing: `step` is told the time and handles all
that is there. How a request ends is the business of `open_requests`.
"""

from shoal.batcher.executions import Executions
from shoal.batcher.holders import Holders
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import Client, Model, Peer, Running, Worker
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Batch
from shoal.batcher.statistics import OLDEST_QUEUED_NS, PENDING_COUNT, REJECTED
from shoal.control import Message
from shoal.errors import UnavailableError
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.layout import (
    BATCH_ITEM,
    CANCEL,
    DONE,
    HAVE,
    HOLD,
    NUMBER_BITS,
    READY,
    RELEASE,
    REQUEST,
    RESCHEDULE,
    RESPONSE,
    WANT,
    D,
    LayoutError,
    R,
)
from shoal.shm.ring import Record

_NUMBER, _PART = R.NUMBER, R.BLOCK
_MAX_NUMBER = (1 << NUMBER_BITS) - 1


class Exchange:
    """All peers, and the rules by which records move between them."""

    def __init__(self, wall_offset_ns: int) -> None:
        #: Wall clock minus monotonic clock, for the one figure that clients read as a date.
        self._wall_offset_ns = wall_offset_ns
        # Changed by the add_, retire_ and remove_ methods, which the control plane calls.
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, Worker] = {}
        self.models: dict[int, Model] = {}
        # Changed by step and by deaths.
        self.holders = Holders()
        self._written: set[Peer] = set()
        self._counted: set[Model] = set()
        self._requests = OpenRequests(self.holders, self._written, self._counted)
        #: Only while a dead batcher's place is taken: the requests that workers have from it.
        self._in_hand: set[int] = set()
        self._is_resuming = False
        self._awake: dict[int, Model] = {}
        self._executions = Executions(self._requests, self._counted, self._awake, wall_offset_ns)
        self._segments = self._executions.segments
        self._deadlines: dict[int, int] = {}
        self._busy: dict[int, Worker] = {}
        self._read: list[Peer] = []
        #: Who makes way for others, until it is reported that nothing of theirs is left.
        self._retiring_workers: set[Worker] = set()
        self._retiring_models: set[Model] = set()
        #: What the loop must tell the supervisor.
        self.reports: list[Message] = []

    @property
    def num_open(self) -> int:
        """Requests accepted and not yet answered."""
        return len(self._requests)

    # --- arrivals and departures, told by the supervisor ---

    def add_worker(self, worker: Worker) -> None:
        """A worker that is loaded and has mapped everything: batches may go to it."""
        self.workers[worker.owner] = worker
        worker.model.is_failed = False
        worker.model.scheduler.add_instance(worker.owner, num_running=worker.num_batches - worker.num_finished)
        self._awake[worker.model.id] = worker.model

    def retire_worker(self, owner: int) -> None:
        """A worker makes way: it gets nothing more, and is reported once it has answered what it was given."""
        worker = self.workers.get(owner)
        if worker is not None:
            worker.model.scheduler.remove_instance(owner)
            self._retiring_workers.add(worker)

    def remove_worker(self, owner: int, now_ns: int, reason: Reason = Reason.INSTANCE_DIED, detail: int = 0) -> None:
        """A worker is dead: what it published is delivered; what it owes goes to another instance, or fails."""
        worker = self.workers.get(owner)
        if worker is None:
            return
        if reason is not Reason.DAMAGED:
            self._drain_worker(worker, now_ns)
        if self.workers.pop(owner, None) is None:
            return
        model = worker.model
        self._busy.pop(owner, None)
        self._written.discard(worker)
        self._retiring_workers.discard(worker)
        for segment in [owner for owner, writer in self._segments.items() if writer is worker]:
            del self._segments[segment]
        model.scheduler.remove_instance(owner)
        self._requests.take_back(worker, reason, detail, now_ns)
        if model.is_failed:
            self._requests.refuse_queued(model, Reason.MODEL_FAILED, now_ns)
        self._awake[model.id] = model

    def add_segment(self, owner: int, worker_owner: int) -> None:
        """A result of that worker may lie in the segment `owner`, too."""
        worker = self.workers.get(worker_owner)
        if worker is not None:
            self._segments[owner] = worker

    def remove_segment(self, owner: int) -> None:
        """No result lies there any more."""
        self._segments.pop(owner, None)

    def remove_client(self, owner: int) -> None:
        """A client is dead, with all it asked and held."""
        client = self.clients.pop(owner, None)
        if client is None:
            return
        self._written.discard(client)
        for key, model in self._requests.forget(client):
            self._tell_cancelled(key, model)
        for ref in self.holders.release_owner(owner):
            self._free(ref)

    def retire_model(self, model_id: int) -> None:
        """Another version takes this one's place: it is reported once nothing of it is queued or running."""
        model = self.models.get(model_id)
        if model is not None:
            self._retiring_models.add(model)

    def remove_model(self, model_id: int, now_ns: int) -> None:
        """A model version is no longer served: what is still queued is refused."""
        model = self.models.pop(model_id, None)
        if model is None:
            return
        self._requests.refuse_queued(model, Reason.NOT_READY, now_ns)
        self._retiring_models.discard(model)
        self._awake.pop(model_id, None)
        self._deadlines.pop(model_id, None)

    def fail_model(self, model_id: int, now_ns: int) -> None:
        """All instances of a model version die again and again: what waits is refused, and what comes, until one is
        ready."""
        model = self.models.get(model_id)
        if model is not None:
            model.is_failed = True
            self._requests.refuse_queued(model, Reason.MODEL_FAILED, now_ns)

    def _report_retired(self) -> None:
        """Whoever has nothing left is reported, once; by now their last answers have been shown to clients."""
        for worker in [each for each in self._retiring_workers if not each.missing]:
            self._retiring_workers.remove(worker)
            self.reports.append({"op": "worker_retired", "owner": worker.owner})
        running = {worker.model for worker in self.workers.values() if worker.missing}
        for model in [each for each in self._retiring_models if not each.scheduler.pending and each not in running]:
            self._retiring_models.remove(model)
            self.reports.append({"op": "model_retired", "model": model.id})

    def resume(self, now_ns: int) -> None:
        """Take a dead batcher's place: every client has said again what is open and what it holds.

        What a worker has from the dead one stays with it; the rest is queued, and times count from now.
        """
        self._in_hand = {key for worker in self.workers.values() for key in worker.missing}
        self._busy.update(self.workers)
        self._counted.update(self.models.values())  # whose queues were not empty when they were shown last
        # The dead one may have shown a batch and not have rung for it.
        for worker in self.workers.values():
            worker.must_ring = True
            self._written.add(worker)
        self._is_resuming = True
        self.step(now_ns)
        self._is_resuming = False
        self._in_hand.clear()

    # --- the loop's body ---

    def step(self, now_ns: int) -> None:
        """Handle every record that is there, form batches, show everybody what was written for them."""
        for client in tuple(self.clients.values()):
            self._drain_client(client, now_ns)
        for worker in tuple(self._busy.values()):
            self._drain_worker(worker, now_ns)
        if self._deadlines:
            for model_id, deadline in self._deadlines.items():
                if deadline <= now_ns:
                    self._awake[model_id] = self.models[model_id]
        if self._awake:
            self._form_batches(now_ns)
        for model in self._counted:
            scheduler, row = model.scheduler, model.row
            row.cells[OLDEST_QUEUED_NS] = oldest_ns = scheduler.oldest_ns()
            row.cells[PENDING_COUNT] = scheduler.pending if oldest_ns else 0
            row.publish()
        self._counted.clear()
        unfinished = [peer for peer in self._written if not peer.flush()]
        self._written.clear()
        if unfinished:
            self._written.update(unfinished)
        # Last: until here a successor would have had to read it all again.
        for peer in self._read:
            peer.acknowledge()
        self._read.clear()
        if self._retiring_workers or self._retiring_models:
            self._report_retired()

    @property
    def has_backlog(self) -> bool:
        """Whether a client's ring was too full for all that it shall hear: then it must be looked at again soon.

        A worker's need not: a busy one reads nothing. What was cancelled waits for the next step, whoever rings.
        """
        return bool(self._written) and any(isinstance(peer, Client) for peer in self._written)

    def next_deadline_ns(self) -> int | None:
        """When `step` must run again though nobody rings."""
        return min(self._deadlines.values(), default=None)

    def _form_batches(self, now_ns: int) -> None:
        for model in self._awake.values():
            scheduler = model.scheduler
            for queued in scheduler.expire(now_ns):
                self._requests.fail(queued.key, Reason.TIMED_OUT, now_ns, REJECTED)
            while (batch := scheduler.take(now_ns)) is not None:
                self._dispatch(model, batch)
            deadline = scheduler.next_deadline_ns()
            if deadline is not None:
                self._deadlines[model.id] = deadline
            elif self._deadlines:
                self._deadlines.pop(model.id, None)
        self._awake.clear()

    def _dispatch(self, model: Model, batch: Batch) -> None:
        instance, requests, rows = batch
        worker = self.workers[instance]
        missing, freed, push = worker.missing, worker.freed, worker.writer.push
        worker.num_batches = number = worker.num_batches + 1
        count = len(requests)
        running = Running(number, rows, count)
        for index, (key, request_rows, _, accepted_ns, priority, timeout_us) in enumerate(requests):
            _, _, _, block, header, _, _, _ = self._requests[key]
            missing[key] = running
            push(
                (
                    BATCH_ITEM, key, number, block, header, request_rows, index, count, freed.pop() if freed else 0,
                    priority, timeout_us, accepted_ns, 0, 0, 0, 0,
                )
            )  # fmt: skip
        self._counted.add(model)
        self._busy[instance] = worker
        worker.must_ring = True
        self._written.add(worker)

    # --- records from clients ---

    def _drain_client(self, client: Client, now_ns: int) -> None:
        try:
            records = client.reader.read()
            if not records:
                return
            for record in records:
                kind = record[0]
                if kind == REQUEST:
                    self._accept(client, record, now_ns)
                elif kind == RELEASE:
                    if ref := self.holders.release(client.first_key + record[_NUMBER], record[_PART]):
                        self._free(ref)
                elif kind == CANCEL:
                    key = client.first_key + record[R.NUMBER]
                    model = self._requests.cancel(key, now_ns, is_sure=not record[R.MORE])
                    if model is not None:
                        self._tell_cancelled(key, model)
                elif kind == HOLD:
                    hold = self.holders.hold_part if record[R.MORE] else self.holders.hold
                    hold(record[R.BLOCK], client.first_key + record[R.NUMBER])
                elif kind == layout.TRACE:
                    if client.first_key + record[R.NUMBER] in self._requests:
                        client.traced.add(record[R.NUMBER])
                else:
                    raise LayoutError(f"client {client.owner} sent a record of kind {kind}")
        except LayoutError:
            self.remove_client(client.owner)
            self.reports.append({"op": "distrusted", "owner": client.owner})
            return
        self._read.append(client)

    def _accept(self, client: Client, record: Record, now_ns: int) -> None:
        _, number, model_id, block, header, rows, shape_key, priority, timeout_us, _, _, start_ns, _, _, _, _ = record
        if number > _MAX_NUMBER:
            raise LayoutError(f"client {client.owner} sent the number {number}")
        model = self.models.get(model_id)
        if model is None or model.is_failed:
            self._requests.turn_away(client, number, Reason.NOT_READY if model is None else Reason.MODEL_FAILED)
            return
        key = client.first_key + number
        queued = QueuedRequest(key, rows, shape_key, now_ns, priority, timeout_us)
        if key in self._requests:
            return  # said again to a batcher that had heard it the first time
        self._requests[key] = (client, model, number, block, header, start_ns, now_ns, queued)
        if key in self._in_hand:
            return
        if self._is_resuming and any(worker.overlaps for worker in self._workers_of(model)):
            # It may be among those that a worker has, and its client may have seen some of the answers.
            self._requests.fail(key, Reason.TAKEN_OVER, now_ns, REJECTED)
            self._tell_cancelled(key, model)
            return
        try:
            model.scheduler.add(queued, now_ns)
        except UnavailableError:
            self._requests.fail(key, Reason.QUEUE_FULL, now_ns, REJECTED)
            return
        self._counted.add(model)
        self._awake[model.id] = model

    # --- records from workers: user code may have written them ---

    def _drain_worker(self, worker: Worker, now_ns: int) -> None:
        try:
            records = worker.reader.read()
        except LayoutError:
            self.remove_worker(worker.owner, now_ns, Reason.DAMAGED)
            self.reports.append({"op": "distrusted", "owner": worker.owner})
            return
        if not records:
            return
        unheld = []
        executions = self._executions
        for record in records:
            kind = record[0]
            if kind == DONE:
                executions.finish(worker, record, now_ns)
                unheld.append(record[D.BLOCK])
            elif kind == RESPONSE:
                if (model := executions.respond(worker, record, now_ns)) is not None:
                    self._tell_cancelled(record[D.KEY], model)
                unheld.append(record[D.BLOCK])
            elif kind == READY:
                executions.ready(worker, record, now_ns)
            elif kind == RESCHEDULE:
                executions.reschedule(worker, record, now_ns)
            elif kind == HAVE:
                unheld.append(record[D.BLOCK])
            elif kind == WANT:
                worker.is_hungry = worker.must_ring = True
                self._written.add(worker)
        for ref in set(unheld):
            if ref and not self.holders.is_held(ref):
                self._free(ref)
        if not worker.missing:
            self._busy.pop(worker.owner, None)
        self._read.append(worker)

    # --- both ways ---

    def _workers_of(self, model: Model) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.model is model]

    def _tell_cancelled(self, key: int, model: Model) -> None:
        """Whoever has the request hears that nobody waits for it; those that cannot stop ignore it.

        What a dead batcher gave a worker whose executions overlap is not known: all such hear.
        """
        for worker in self._workers_of(model):
            if key in worker.missing or (self._is_resuming and worker.overlaps):
                worker.cancelled.add(key)
                self._written.add(worker)

    def _free(self, ref: int) -> None:
        owner = layout.ref_owner(ref)
        worker = self.workers.get(owner) or self._segments.get(owner)
        if worker is not None:
            worker.freed.append(ref)
            self._written.add(worker)
            # A block of its slab can wait for the worker's next batch, unless it waits for memory itself.
            if worker.is_hungry or owner != worker.owner:
                worker.must_ring = True
