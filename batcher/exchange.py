"""The centre of the star: takes requests from clients, hands batches to workers, answers clients. Runs in the batcher.

It owns every request from acceptance to reply: "exactly one answer" is one `dict.pop` here. It sees records only, never
a tensor. It reads no clock and waits for nothing: `step` is told the time and handles all that is there.
"""

from shoal.batcher.holders import Holders
from shoal.batcher.peers import Client, Model, Peer, Request, Running, Worker
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Batch
from shoal.errors import CancelledError, InternalError, UnavailableError
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.counters import CELL, Row
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, FREE, RELEASE, REPLY, REQUEST, WANT, D, LayoutError, R

_SUCCESS_COUNT, _SUCCESS_NS = CELL["success_count"], CELL["success_ns"]
_FAIL_COUNT, _FAIL_NS = CELL["fail_count"], CELL["fail_ns"]
_QUEUE_NS, _INPUT_NS = CELL["queue_ns"], CELL["compute_input_ns"]
_INFER_NS, _OUTPUT_NS = CELL["compute_infer_ns"], CELL["compute_output_ns"]
_INFERENCE_COUNT, _PENDING = CELL["inference_count"], CELL["pending_count"]
_LAST_INFERENCE_MS = CELL["last_inference_ms"]
_REJECTED, _CANCELED, _BACKEND = CELL["failed_rejected"], CELL["failed_canceled"], CELL["failed_backend"]


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
        self._requests: dict[int, Request] = {}
        self._key = 0
        self._awake: dict[int, Model] = {}
        self._deadlines: dict[int, int] = {}
        self._busy: dict[int, Worker] = {}
        self._written: set[Peer] = set()
        self._counted: set[Row] = set()
        #: Owners whose rings cannot be believed; the loop reports them to the supervisor, which kills them.
        self.distrusted: list[int] = []

    # --- arrivals and departures, told by the supervisor ---

    def add_worker(self, worker: Worker) -> None:
        """A worker that is loaded and has mapped everything: batches may go to it."""
        self.workers[worker.owner] = worker
        worker.model.scheduler.add_instance(worker.owner)
        self._awake[worker.model.id] = worker.model

    def retire_worker(self, owner: int) -> None:
        """No more batches to this worker; what it is executing is awaited."""
        worker = self.workers.get(owner)
        if worker is not None:
            worker.model.scheduler.remove_instance(owner)

    def remove_worker(self, owner: int, now_ns: int, reason: Reason = Reason.INSTANCE_DIED) -> None:
        """A worker is dead: what it published is delivered, what it was executing fails, once each."""
        worker = self.workers.get(owner)
        if worker is None:
            return
        if reason is Reason.INSTANCE_DIED:
            self._drain_worker(worker, now_ns)
        if self.workers.pop(owner, None) is None:
            return
        self._busy.pop(owner, None)
        self._written.discard(worker)
        self._segments = {owner: writer for owner, writer in self._segments.items() if writer is not worker}
        worker.model.scheduler.remove_instance(owner)
        for key in sorted(worker.missing):
            self._fail(key, reason, now_ns, _BACKEND)
        self._awake[worker.model.id] = worker.model

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
        for key in client.keys.values():
            model = self._requests.pop(key).model
            if model.scheduler.cancel(key):
                model.row.cells[_PENDING] -= 1
        for ref in self.holders.release_owner(owner):
            self._free(ref)

    def remove_model(self, model_id: int, now_ns: int) -> None:
        """A model version is no longer served: what is still queued is refused."""
        model = self.models.pop(model_id, None)
        if model is None:
            return
        for queued in model.scheduler.drain():
            self._fail(queued.key, Reason.NOT_READY, now_ns, _REJECTED)
        self._awake.pop(model_id, None)
        self._deadlines.pop(model_id, None)

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
        for peer in self._written:
            peer.flush()
        self._written.clear()
        for row in self._counted:
            row.publish()
        self._counted.clear()

    def next_deadline_ns(self) -> int | None:
        """When `step` must run again though nobody rings."""
        return min(self._deadlines.values(), default=None)

    def _form_batches(self, now_ns: int) -> None:
        for model in self._awake.values():
            scheduler = model.scheduler
            for queued in scheduler.expire(now_ns):
                self._fail(queued.key, Reason.TIMED_OUT, now_ns, _REJECTED)
            while (batch := scheduler.take(now_ns)) is not None:
                self._dispatch(batch)
            deadline = scheduler.next_deadline_ns()
            if deadline is None:
                self._deadlines.pop(model.id, None)
            else:
                self._deadlines[model.id] = deadline
        self._awake.clear()

    def _dispatch(self, batch: Batch) -> None:
        worker = self.workers[batch.instance]
        worker.num_batches = number = worker.num_batches + 1
        count = len(batch.requests)
        worker.batches[number] = Running(batch.rows, count)
        for index, queued in enumerate(batch.requests):
            key = queued.key
            request = self._requests[key]
            worker.missing[key] = number
            worker.writer.push(
                (
                    BATCH_ITEM, key, number, request.block, request.header, request.rows, index, count,
                    0, 0, 0, 0, 0, 0, 0, 0,
                )
            )  # fmt: skip
        row = worker.model.row
        row.cells[_PENDING] -= count
        self._counted.add(row)
        self._busy[worker.owner] = worker
        worker.must_ring = True
        self._written.add(worker)

    # --- records from clients ---

    def _drain_client(self, client: Client, now_ns: int) -> None:
        try:
            for record in client.reader.drain():
                kind = record[0]
                if kind == REQUEST:
                    self._accept(client, record, now_ns)
                elif kind == RELEASE:
                    if ref := self.holders.release((client.owner, record[R.NUMBER])):
                        self._free(ref)
                elif kind == CANCEL:
                    self._cancel(client, record[R.NUMBER], now_ns)
                else:
                    raise LayoutError(f"client {client.owner} sent a record of kind {kind}")
        except LayoutError:
            self.remove_client(client.owner)
            self.distrusted.append(client.owner)

    def _accept(self, client: Client, record: tuple[int, ...], now_ns: int) -> None:
        number = record[R.NUMBER]
        model = self.models.get(record[R.MODEL])
        if model is None:
            self._push(client, layout.record(REPLY, number, UnavailableError.wire, 0, 0, Reason.NOT_READY))
            return
        self._key = key = self._key + 1
        rows = record[R.ROWS]
        self._requests[key] = Request(
            client, number, model, record[R.BLOCK], record[R.HEADER], rows, record[R.START_NS], now_ns
        )
        client.keys[number] = key
        try:
            model.scheduler.add(
                QueuedRequest(key, rows, record[R.SHAPE_KEY], now_ns, record[R.PRIORITY], record[R.TIMEOUT_US]), now_ns
            )
        except UnavailableError:
            self._fail(key, Reason.QUEUE_FULL, now_ns, _REJECTED, pending=0)
            return
        model.row.cells[_PENDING] += 1
        self._counted.add(model.row)
        self._awake[model.id] = model

    def _cancel(self, client: Client, number: int, now_ns: int) -> None:
        key = client.keys.get(number)
        if key is None:
            return
        request = self._requests[key]
        if request.model.scheduler.cancel(key):
            self._fail(key, Reason.CANCELLED, now_ns, _CANCELED)

    # --- records from workers: user code may have written them ---

    def _drain_worker(self, worker: Worker, now_ns: int) -> None:
        try:
            records = worker.reader.drain()
        except LayoutError:
            self.remove_worker(worker.owner, now_ns, Reason.DAMAGED)
            self.distrusted.append(worker.owner)
            return
        unheld = set()
        for record in records:
            ref = record[D.BLOCK]
            if ref and (owner := layout.ref_owner(ref)) != worker.owner and self._segments.get(owner) is not worker:
                self._refuse_answer(worker, record, now_ns)
            elif not self._answer(worker, record, now_ns) and ref:
                unheld.add(ref)
        for ref in unheld:
            if not self.holders.is_held(ref):
                self._free(ref)

    def _answer(self, worker: Worker, record: tuple[int, ...], now_ns: int) -> bool:
        """One DONE: the request's only answer goes to its client. True if that client now holds the block."""
        key = record[D.KEY]
        if record[0] == WANT:
            worker.is_hungry = worker.must_ring = True
            self._written.add(worker)
        if record[0] != DONE or key not in worker.missing:
            return False
        number_of_batch = worker.missing.pop(key)
        request = self._requests.pop(key, None)
        held = False
        if request is not None:
            client, number, ref = request.client, request.number, record[D.BLOCK]
            del client.keys[number]
            if ref:
                self.holders.hold(ref, (client.owner, number))
                held = True
            self._push(
                client, (REPLY, number, record[D.STATUS], ref, record[D.HEADER], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            )
            self._count(request, record, now_ns)
        running = worker.batches[number_of_batch]
        running.num_missing -= 1
        if not running.num_missing:
            del worker.batches[number_of_batch]
            self._finish_batch(worker, running, record, now_ns)
        return held

    def _refuse_answer(self, worker: Worker, record: tuple[int, ...], now_ns: int) -> None:
        """A DONE that names memory which is not the worker's own: its request fails, nothing is handed out."""
        key = record[D.KEY]
        if key in worker.missing:
            self._fail(key, Reason.DAMAGED, now_ns, _BACKEND)
            self._answer(worker, layout.record(DONE, key), now_ns)

    def _count(self, request: Request, record: tuple[int, ...], now_ns: int) -> None:
        row = request.model.row
        self._counted.add(row)
        cells = row.cells
        total_ns = max(0, now_ns - request.start_ns)
        if record[D.STATUS]:
            cells[_FAIL_COUNT] += 1
            cells[_FAIL_NS] += total_ns
            cells[_CANCELED if record[D.STATUS] == CancelledError.wire else _BACKEND] += 1
            return
        start, input_end, output_start, end = _time_points(record)
        cells[_SUCCESS_COUNT] += 1
        cells[_SUCCESS_NS] += total_ns
        cells[_QUEUE_NS] += max(0, start - request.queue_ns)
        cells[_INPUT_NS] += input_end - start
        cells[_INFER_NS] += output_start - input_end
        cells[_OUTPUT_NS] += end - output_start
        cells[_INFERENCE_COUNT] += request.rows

    def _finish_batch(self, worker: Worker, running: Running, record: tuple[int, ...], now_ns: int) -> None:
        row = worker.model.row
        start, input_end, output_start, end = _time_points(record)
        row.count_execution(running.rows, input_end - start, output_start - input_end, end - output_start)
        row.cells[_LAST_INFERENCE_MS] = (now_ns + self._wall_offset_ns) // 1_000_000
        self._counted.add(row)
        worker.is_hungry = False
        if not worker.batches:
            self._busy.pop(worker.owner, None)
        worker.model.scheduler.complete(worker.owner, now_ns)
        self._awake[worker.model.id] = worker.model

    # --- both ways ---

    def _fail(self, key: int, reason: Reason, now_ns: int, cell: int, pending: int = 1) -> None:
        """Answer a request that no worker will answer; `pending` says whether it was counted as waiting."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        client, row = request.client, request.model.row
        self._counted.add(row)
        cells = row.cells
        del client.keys[request.number]
        self._push(client, layout.record(REPLY, request.number, InternalError.wire, 0, 0, reason))
        cells[_FAIL_COUNT] += 1
        cells[_FAIL_NS] += max(0, now_ns - request.start_ns)
        cells[cell] += 1
        if pending and cell != _BACKEND:  # what was executing had left the queue
            cells[_PENDING] -= 1

    def _free(self, ref: int) -> None:
        owner = layout.ref_owner(ref)
        worker = self.workers.get(owner) or self._segments.get(owner)
        if worker is not None:
            worker.writer.push((FREE, 0, 0, ref, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
            self._written.add(worker)
            # A block of its slab can wait for the worker's next batch, unless it waits for memory itself.
            if worker.is_hungry or owner != worker.owner:
                worker.must_ring = True

    def _push(self, client: Client, record: tuple[int, ...]) -> None:
        client.writer.push(record)
        client.must_ring = True
        self._written.add(client)


def _time_points(record: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Compute start, input end, output start, compute end; made monotonic, since a worker could write anything."""
    start = record[D.COMPUTE_START_NS]
    input_end = max(start, record[D.INPUT_END_NS])
    output_start = max(input_end, record[D.OUTPUT_START_NS])
    return start, input_end, output_start, max(output_start, record[D.COMPUTE_END_NS])
