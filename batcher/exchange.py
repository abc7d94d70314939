"""The centre of the star: takes requests from clients, hands batches to workers, answers clients. Runs in the batcher.

It owns every request from acceptance to reply: "exactly one answer" is one `dict.pop` here. It sees records only, never
a tensor. It reads no clock and waits for nothing: `step` is told the time and handles all that is there.
"""

from shoal.batcher import statistics
from shoal.batcher.holders import Holders
from shoal.batcher.peers import Client, Model, Peer, Running, Worker
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Batch
from shoal.batcher.statistics import BACKEND, CANCELED, REJECTED
from shoal.errors import InternalError, UnavailableError
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.counters import Row
from shoal.shm.layout import (
    BATCH_ITEM,
    CANCEL,
    DONE,
    HAVE,
    HOLD,
    NUMBER_BITS,
    RELEASE,
    REPLY,
    REQUEST,
    WANT,
    D,
    LayoutError,
    R,
)
from shoal.shm.ring import Record

_MAX_NUMBER = (1 << NUMBER_BITS) - 1

#: An accepted request that has not been answered: client, model, the client's number, block, header, when the client
#: began to receive it and when it was accepted (monotonic ns), and what the policy sees of it. A plain tuple, and
#: records are unpacked at once: an object costs ten times as much to make, a word found by its name to read.
Open = tuple[Client, Model, int, int, int, int, int, QueuedRequest]


class Exchange:
    """All peers, all open requests, and the rules by which records move between them."""

    def __init__(self, wall_offset_ns: int) -> None:
        #: Wall clock minus monotonic clock, for the one figure that clients read as a date.
        self._wall_offset_ns = wall_offset_ns
        # Changed by the add_/remove_ methods, which the control plane calls.
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, Worker] = {}
        self.models: dict[int, Model] = {}
        #: Whose results lie in segments beside the workers' own.
        self._segments: dict[int, Worker] = {}
        # Changed by step and by deaths.
        self.holders = Holders()
        self._requests: dict[int, Open] = {}
        #: Only while a dead batcher's place is taken: the requests that workers have from it.
        self._in_hand: set[int] = set()
        #: Requests that were being executed when their instance died, and have been given one more chance.
        self._second_chances: set[int] = set()
        self._awake: dict[int, Model] = {}
        self._deadlines: dict[int, int] = {}
        self._busy: dict[int, Worker] = {}
        self._read: list[Peer] = []
        self._written: set[Peer] = set()
        self._counted: set[Row] = set()
        #: Owners whose rings cannot be believed; the loop reports them to the supervisor, which kills them.
        self.distrusted: list[int] = []

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

    def remove_worker(self, owner: int, now_ns: int, reason: Reason = Reason.INSTANCE_DIED, detail: int = 0) -> None:
        """A worker is dead: what it published is delivered; what it had not begun goes to another instance.

        What it was executing runs once more where the model may, each request alone, so that one that kills instances
        is found; else, and the second time, it fails. A limit it went beyond is not tried a second time.
        """
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
        self._segments = {owner: writer for owner, writer in self._segments.items() if writer is not worker}
        model.scheduler.remove_instance(owner)
        # One that wrote nonsense is not believed in this either.
        begun = worker.num_batches if reason is Reason.DAMAGED else worker.batch_begun
        for key, running in reversed(worker.missing.items()):  # each goes to the front
            if running.number > begun:
                self._queue_again(key, model)
            elif reason is Reason.INSTANCE_DIED and model.may_run_again and key not in self._second_chances:
                self._second_chances.add(key)
                self._queue_again(key, model)
            else:
                self._fail(key, reason, now_ns, BACKEND, detail)
        if model.is_failed:
            self._refuse_queued(model, Reason.MODEL_FAILED, now_ns)
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
        """A client is dead: its queued requests are forgotten, its running ones finish for nobody."""
        client = self.clients.pop(owner, None)
        if client is None:
            return
        self._written.discard(client)
        for key in [key for key in self._requests if key >> NUMBER_BITS == owner]:
            model = self._requests.pop(key)[1]
            self._second_chances.discard(key)
            if model.scheduler.cancel(key):
                self._count_departures(model)
        for ref in self.holders.release_owner(owner):
            self._free(ref)

    def remove_model(self, model_id: int, now_ns: int) -> None:
        """A model version is no longer served: what is still queued is refused."""
        model = self.models.pop(model_id, None)
        if model is None:
            return
        self._refuse_queued(model, Reason.NOT_READY, now_ns)
        self._awake.pop(model_id, None)
        self._deadlines.pop(model_id, None)

    def fail_model(self, model_id: int, now_ns: int) -> None:
        """All instances of a model version die again and again: what waits is refused, and what comes, until one is
        ready."""
        model = self.models.get(model_id)
        if model is not None:
            model.is_failed = True
            self._refuse_queued(model, Reason.MODEL_FAILED, now_ns)

    def _refuse_queued(self, model: Model, reason: Reason, now_ns: int) -> None:
        for queued in model.scheduler.drain():
            self._refuse(queued.key, model, reason, now_ns, REJECTED)

    def resume(self, now_ns: int) -> None:
        """Take a dead batcher's place: every client has said again what is open and what it holds.

        What a worker has from the dead one stays with it; the rest is queued, and times count from now.
        """
        self._in_hand = {key for worker in self.workers.values() for key in worker.missing}
        self._busy.update(self.workers)
        # The dead one may have shown a batch and not have rung for it.
        for worker in self.workers.values():
            worker.must_ring = True
            self._written.add(worker)
        self.step(now_ns)
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
        for row in self._counted:
            row.publish()
        self._counted.clear()
        for peer in self._written:
            peer.flush()
        self._written.clear()
        # Last: until here a successor would have had to read it all again.
        for peer in self._read:
            peer.acknowledge()
        self._read.clear()

    def next_deadline_ns(self) -> int | None:
        """When `step` must run again though nobody rings."""
        return min(self._deadlines.values(), default=None)

    def _form_batches(self, now_ns: int) -> None:
        for model in self._awake.values():
            scheduler = model.scheduler
            for queued in scheduler.expire(now_ns):
                self._refuse(queued.key, model, Reason.TIMED_OUT, now_ns, REJECTED)
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
        for index, (key, request_rows, *_) in enumerate(requests):
            _, _, _, block, header, _, _, _ = self._requests[key]
            missing[key] = running
            push(
                (
                    BATCH_ITEM, key, number, block, header, request_rows, index, count, freed.pop() if freed else 0,
                    0, 0, 0, 0, 0, 0, 0,
                )
            )  # fmt: skip
        self._count_departures(model, count)
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
                    if ref := self.holders.release(client.first_key + record[R.NUMBER]):
                        self._free(ref)
                elif kind == CANCEL:
                    self._cancel(client.first_key + record[R.NUMBER], now_ns)
                elif kind == HOLD:
                    self.holders.hold(record[R.BLOCK], client.first_key + record[R.NUMBER])
                else:
                    raise LayoutError(f"client {client.owner} sent a record of kind {kind}")
        except LayoutError:
            self.remove_client(client.owner)
            self.distrusted.append(client.owner)
            return
        self._read.append(client)

    def _accept(self, client: Client, record: Record, now_ns: int) -> None:
        _, number, model_id, block, header, rows, shape_key, priority, timeout_us, _, _, start_ns, _, _, _, _ = record
        if number > _MAX_NUMBER:
            raise LayoutError(f"client {client.owner} sent the number {number}")
        model = self.models.get(model_id)
        if model is None or model.is_failed:
            reason = Reason.NOT_READY if model is None else Reason.MODEL_FAILED
            self._push(client, layout.record(REPLY, number, UnavailableError.wire, 0, 0, reason))
            return
        key = client.first_key + number
        queued = QueuedRequest(key, rows, shape_key, now_ns, priority, timeout_us)
        if key in self._requests:
            return  # said again to a batcher that had heard it the first time
        self._requests[key] = (client, model, number, block, header, start_ns, now_ns, queued)
        if key in self._in_hand:
            return
        try:
            model.scheduler.add(queued, now_ns)
        except UnavailableError:
            self._fail(key, Reason.QUEUE_FULL, now_ns, REJECTED)
            return
        statistics.count_arrival(model.row)
        self._counted.add(model.row)
        self._awake[model.id] = model

    def _queue_again(self, key: int, model: Model) -> None:
        """A request whose instance died goes to another, alone and before all that wait."""
        request = self._requests.get(key)
        if request is not None:
            model.scheduler.add_first(request[-1])
            statistics.count_arrival(model.row)
            self._counted.add(model.row)

    def _cancel(self, key: int, now_ns: int) -> None:
        request = self._requests.get(key)
        if request is not None and request[1].scheduler.cancel(key):
            self._refuse(key, request[1], Reason.CANCELLED, now_ns, CANCELED)

    # --- records from workers: user code may have written them ---

    def _drain_worker(self, worker: Worker, now_ns: int) -> None:
        try:
            records = worker.reader.read()
        except LayoutError:
            self.remove_worker(worker.owner, now_ns, Reason.DAMAGED)
            self.distrusted.append(worker.owner)
            return
        if not records:
            return
        unheld = []
        for record in records:
            if record[0] == DONE:
                self._finish(worker, record, now_ns)
                unheld.append(record[D.BLOCK])
            elif record[0] == HAVE:
                unheld.append(record[D.BLOCK])
            elif record[0] == WANT:
                worker.is_hungry = worker.must_ring = True
                self._written.add(worker)
        for ref in set(unheld):
            if ref and not self.holders.is_held(ref):
                self._free(ref)
        self._read.append(worker)

    def _finish(self, worker: Worker, record: Record, now_ns: int) -> None:
        """One DONE: the request's only answer goes to its client, which holds the answer's block from now on."""
        _, key, _, status, ref, header, start, input_end, output_start, end, _, _, _, _, _, _ = record
        running = worker.missing.pop(key, None)
        if running is None:
            return
        compute = statistics.compute_times(start, input_end, output_start, end)
        if ref and (owner := layout.ref_owner(ref)) != worker.owner and self._segments.get(owner) is not worker:
            self._fail(key, Reason.DAMAGED, now_ns, BACKEND)
        elif (request := self._requests.pop(key, None)) is not None:
            client, model, number, _, _, start_ns, queue_ns, queued = request
            if ref:
                self.holders.hold(ref, key)
            self._push(client, (REPLY, number, status, ref, header, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
            if status:
                reason = statistics.reason_of_status(status)
                statistics.count_failure(model.row, reason, start_ns, now_ns)
            else:
                statistics.count_success(model.row, queued.rows, compute, start_ns, queue_ns, now_ns)
            if self._second_chances:
                self._second_chances.discard(key)
        running.num_missing -= 1
        if not running.num_missing:
            self._finish_batch(worker, running, compute, now_ns)

    def _finish_batch(self, worker: Worker, running: Running, compute: statistics.Compute, now_ns: int) -> None:
        model = worker.model
        statistics.count_execution(model.row, running.rows, compute, now_ns + self._wall_offset_ns)
        self._counted.add(model.row)
        worker.is_hungry = False
        worker.num_finished = running.number
        if not worker.missing:
            self._busy.pop(worker.owner, None)
        model.scheduler.complete(worker.owner, now_ns, compute[1] + compute[2] + compute[3])
        self._awake[model.id] = model

    # --- both ways ---

    def _refuse(self, key: int, model: Model, reason: Reason, now_ns: int, cell: int) -> None:
        """Answer a request that has just been taken out of its queue."""
        self._count_departures(model)
        self._fail(key, reason, now_ns, cell)

    def _fail(self, key: int, reason: Reason, now_ns: int, cell: int, detail: int = 0) -> None:
        """Answer a request that no worker will answer; `detail` is what the reason's sentence names."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        client, model, number, _, _, start_ns, _, _ = request
        self._second_chances.discard(key)
        self._push(client, layout.record(REPLY, number, InternalError.wire, 0, 0, reason, detail))
        statistics.count_failure(model.row, cell, start_ns, now_ns)
        self._counted.add(model.row)

    def _count_departures(self, model: Model, count: int = 1) -> None:
        statistics.count_departures(model.row, count)
        self._counted.add(model.row)

    def _free(self, ref: int) -> None:
        owner = layout.ref_owner(ref)
        worker = self.workers.get(owner) or self._segments.get(owner)
        if worker is not None:
            worker.freed.append(ref)
            self._written.add(worker)
            # A block of its slab can wait for the worker's next batch, unless it waits for memory itself.
            if worker.is_hungry or owner != worker.owner:
                worker.must_ring = True

    def _push(self, client: Client, record: Record) -> None:
        client.writer.push(record)
        client.must_ring = True
        self._written.add(client)
