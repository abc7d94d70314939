"""The centre of the star: takes requests from clients, hands batches to workers, answers clients. Runs in the batcher.

It owns every request from acceptance to reply: "exactly one answer" is one `dict.pop` here. It sees records only, never
a tensor. It reads no clock and waits for nothing: `step` is told the time and handles all that is there.
"""

from shoal.batcher.holders import Holder, Holders
from shoal.batcher.peers import Client, Model, Peer, Request, Worker
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Batch
from shoal.errors import CancelledError, InternalError, UnavailableError
from shoal.reasons import Reason
from shoal.shm import layout
from shoal.shm.counters import CELL
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, FREE, RELEASE, REPLY, REQUEST, D, LayoutError, R

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
                model.row.words[_PENDING] -= 1
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
        for client in list(self.clients.values()):
            self._drain_client(client, now_ns)
        for worker in list(self._busy.values()):
            self._drain_worker(worker, now_ns)
        for model_id, deadline in list(self._deadlines.items()):
            if deadline <= now_ns:
                self._awake[model_id] = self.models[model_id]
        if self._awake:
            self._form_batches(now_ns)
        for peer in self._written:
            peer.flush()
        self._written.clear()

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
        worker.num_batches += 1
        worker.batch = batch
        count = len(batch.requests)
        for index, queued in enumerate(batch.requests):
            request = self._requests[queued.key]
            worker.missing.add(queued.key)
            worker.writer.push(
                (
                    BATCH_ITEM, queued.key, worker.num_batches, request.block, request.header, request.rows, index,
                    count, 0, 0, 0, 0, 0, 0, 0, 0,
                )
            )  # fmt: skip
        worker.model.row.words[_PENDING] -= count
        self._busy[worker.owner] = worker
        self._written.add(worker)

    # --- records from clients ---

    def _drain_client(self, client: Client, now_ns: int) -> None:
        try:
            for record in client.reader.drain():
                kind = record[0]
                if kind == REQUEST:
                    self._accept(client, record, now_ns)
                elif kind == RELEASE:
                    if ref := self.holders.release(Holder(client.owner, record[R.NUMBER])):
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
        model.row.words[_PENDING] += 1
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
        if record[0] != DONE or key not in worker.missing:
            return False
        worker.missing.remove(key)
        request = self._requests.pop(key, None)
        held = False
        if request is not None:
            client, number, ref = request.client, request.number, record[D.BLOCK]
            del client.keys[number]
            if ref:
                self.holders.hold(ref, Holder(client.owner, number))
                held = True
            self._push(
                client, (REPLY, number, record[D.STATUS], ref, record[D.HEADER], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            )
            self._count(request, record, now_ns)
        if not worker.missing:
            self._finish_batch(worker, record, now_ns)
        return held

    def _refuse_answer(self, worker: Worker, record: tuple[int, ...], now_ns: int) -> None:
        """A DONE that names memory which is not the worker's own: its request fails, nothing is handed out."""
        key = record[D.KEY]
        if key in worker.missing:
            self._fail(key, Reason.DAMAGED, now_ns, _BACKEND)
            self._answer(worker, layout.record(DONE, key), now_ns)

    def _count(self, request: Request, record: tuple[int, ...], now_ns: int) -> None:
        words = request.model.row.words
        total_ns = max(0, now_ns - request.start_ns)
        if record[D.STATUS]:
            words[_FAIL_COUNT] += 1
            words[_FAIL_NS] += total_ns
            words[_CANCELED if record[D.STATUS] == CancelledError.wire else _BACKEND] += 1
            return
        start, input_end, output_start, end = _time_points(record)
        words[_SUCCESS_COUNT] += 1
        words[_SUCCESS_NS] += total_ns
        words[_QUEUE_NS] += max(0, start - request.queue_ns)
        words[_INPUT_NS] += input_end - start
        words[_INFER_NS] += output_start - input_end
        words[_OUTPUT_NS] += end - output_start
        words[_INFERENCE_COUNT] += request.rows

    def _finish_batch(self, worker: Worker, record: tuple[int, ...], now_ns: int) -> None:
        row, batch = worker.model.row, worker.batch
        start, input_end, output_start, end = _time_points(record)
        row.count_execution(batch.rows if batch else 0, input_end - start, output_start - input_end, end - output_start)
        row.words[_LAST_INFERENCE_MS] = (now_ns + self._wall_offset_ns) // 1_000_000
        worker.batch = None
        self._busy.pop(worker.owner, None)
        worker.model.scheduler.complete(worker.owner, now_ns)
        self._awake[worker.model.id] = worker.model

    # --- both ways ---

    def _fail(self, key: int, reason: Reason, now_ns: int, cell: int, pending: int = 1) -> None:
        """Answer a request that no worker will answer; `pending` says whether it was counted as waiting."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        client, words = request.client, request.model.row.words
        del client.keys[request.number]
        self._push(client, layout.record(REPLY, request.number, InternalError.wire, 0, 0, reason))
        words[_FAIL_COUNT] += 1
        words[_FAIL_NS] += max(0, now_ns - request.start_ns)
        words[cell] += 1
        if pending and cell != _BACKEND:  # what was executing had left the queue
            words[_PENDING] -= 1

    def _free(self, ref: int) -> None:
        owner = layout.ref_owner(ref)
        worker = self.workers.get(owner) or self._segments.get(owner)
        if worker is not None:
            self._push(worker, layout.record(FREE, 0, 0, ref))

    def _push(self, peer: Peer, record: tuple[int, ...]) -> None:
        peer.writer.push(record)
        self._written.add(peer)


def _time_points(record: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Compute start, input end, output start, compute end; made monotonic, since a worker could write anything."""
    start = record[D.COMPUTE_START_NS]
    input_end = max(start, record[D.INPUT_END_NS])
    output_start = max(input_end, record[D.OUTPUT_START_NS])
    return start, input_end, output_start, max(output_start, record[D.COMPUTE_END_NS])
