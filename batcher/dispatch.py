"""Dispatch takes batches that are due from the models' schedulers and writes them into workers' rings.

Expired requests are refused on the way. Workers for which a batch was written are added to `written`; the exchange
publishes the batches. Lives in the batcher.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import RunningBatch, ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.contract import Sequences
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.statistics import CANCELED, REJECTED
from shoal.fault import IS_ARMED, reached
from shoal.reasons import Reason
from shoal.shm.layout import BATCH_ITEM
from shoal.shm.ring import Record

#: Replaced times are removed from the heap of DueModels once there are this many more of them than valid ones (ours).
_MAX_STALE = 64


class DueModels:
    """Models whose scheduler must run again at a certain time though no record arrives.

    A heap, since many models may wait (each with idle sequences does): reading the earliest time is O(1), setting a
    time O(log n).
    """

    __slots__ = ("_heap", "due_ns")

    def __init__(self) -> None:
        # Changed by every method: model → its time (monotonic ns). Public, since other code tests it for emptiness: a
        # `__bool__` would take 300 instructions each time.
        self.due_ns: dict[int, int] = {}
        #: (time, model), including replaced times until they reach the top.
        self._heap: list[tuple[int, int]] = []

    def set(self, model_id: int, due_ns: int) -> None:
        """Set the time (monotonic ns) at which a model's scheduler runs again, instead of any earlier setting."""
        if self.due_ns.get(model_id) == due_ns:
            return
        self.due_ns[model_id] = due_ns
        heap = self._heap
        heappush(heap, (due_ns, model_id))
        if len(heap) > 2 * len(self.due_ns) + _MAX_STALE:
            heap[:] = [(each_ns, each) for each, each_ns in self.due_ns.items()]
            heapify(heap)

    def forget(self, model_id: int) -> None:
        """Remove a model's time."""
        self.due_ns.pop(model_id, None)

    def next_ns(self) -> int | None:
        """The earliest time in monotonic ns; None if no model has one."""
        heap, due_ns = self._heap, self.due_ns
        while heap and due_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ns: int) -> list[int]:
        """Remove and return the models whose time has come."""
        taken = []
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            _, model_id = heappop(self._heap)
            del self.due_ns[model_id]
            taken.append(model_id)
        return taken


class Dispatch:
    """Forms the batches of all models in `awake`."""

    def __init__(
        self, models: Mapping[int, ScheduledModel], workers: Mapping[int, WorkerPeer], requests: OpenRequests,
        written: set[WorkerPeer], counted: set[ScheduledModel], limiter: RateLimiter | None = None,
    ) -> None:  # fmt: skip
        self._models = models
        self._workers = workers
        self._requests = requests
        self._open = requests.by_key
        self._written = written
        self._counted = counted
        self._limiter = limiter
        # Changed by form_batches, and by all code that queues or removes a model's requests: the models that may have a
        # batch to form, and the times at which a model's scheduler must run again.
        self.awake = requests.awake
        self.deadlines = DueModels()
        #: Workers whose rings are read without a bell: such a worker has several batches, and may ring only at the end
        #: of a long execution.
        self.busy: dict[int, WorkerPeer] = {}

    def forget(self, model_id: int) -> None:
        """Forget a model version."""
        self.awake.pop(model_id, None)
        self.deadlines.forget(model_id)

    def wake_due(self, now_ns: int) -> None:
        """Add models whose time has come to `awake`."""
        for model_id in self.deadlines.take(now_ns):
            if (model := self._models.get(model_id)) is not None:  # otherwise the model is no longer served
                self.awake[model_id] = model

    def form_batches(self, now_ns: int) -> None:
        """Form batches of all models in `awake`. Afterwards `awake` has only models whose staged batches the rate
        limiter has just admitted, for the next call."""
        for model in self.awake.values():
            scheduler = model.scheduler
            for queued in scheduler.expire(now_ns):
                self._requests.fail(queued.key, Reason.TIMED_OUT, now_ns, REJECTED)
            if model.sequences is not None:
                self._refuse(model.sequences, now_ns)
            while (batch := scheduler.take(now_ns)) is not None:
                self._dispatch(model, batch, now_ns)
            if model.sequences is not None and model.sequences.changes:
                self._note_slots(model.sequences)
            deadline = scheduler.next_deadline_ns()
            if deadline is not None:
                self.deadlines.set(model.id, deadline)
            elif self.deadlines.due_ns:
                self.deadlines.forget(model.id)
        self.awake.clear()
        if self._limiter is not None:
            for instance in self._limiter.allocate():
                model = self._workers[instance].model
                self.awake[model.id] = model

    def _note_slots(self, sequences: Sequences) -> None:
        for change in sequences.changes:
            worker = self._workers.get(change.instance)
            if worker is not None:
                worker.slots.note(change)
        sequences.changes.clear()

    def _refuse(self, sequences: Sequences, now_ns: int) -> None:
        for key, reason in sequences.refused():
            self._requests.fail(key, reason, now_ns, CANCELED if reason is Reason.CANCELLED else REJECTED)

    def _dispatch(self, model: ScheduledModel, batch: Batch, now_ns: int) -> None:
        instance, requests, rows = batch
        worker = self._workers[instance]
        missing, freed, writer = worker.missing, worker.freed, worker.writer
        worker.num_batches = number = worker.num_batches + 1
        count, is_next = len(requests), not missing
        worker.last = running = RunningBatch(number, rows, count, worker, now_ns)
        if model.latest_ns is not None:
            running.overtaken = _overtaken(model.latest_ns, requests)
        if model.order is not None and model.order.begin([request.key for request in requests]):
            worker.note_overlap()  # a successor cannot know which responses `preserve_ordering` keeps back
        for index, request in enumerate(requests):
            key = request.key
            _, _, _, block, header, _, _, _ = self._open[key]
            missing[key] = running
            item: Record = (
                BATCH_ITEM, key, number, block, header, request.rows, index, count, freed.pop() if freed else 0,
                request.priority, request.timeout_us, request.arrival_ns, request.deadline_ns,
            )  # fmt: skip
            writer.push(item if model.sequences is None else (*item, request.flags, request.correlation))
        self._counted.add(model)
        if not (is_next or instance in self.busy or worker.overlaps):
            self.busy[instance] = worker
        worker.must_ring = True
        self._written.add(worker)
        if IS_ARMED:
            reached("dispatched")


def _overtaken(latest_ns: dict[int, int], requests: Sequence[QueuedRequest]) -> frozenset[int]:
    """The keys of a batch's requests that later requests of a higher priority have overtaken. Notes the arrival of each
    request of the batch in `latest_ns`."""
    overtaken = [
        request.key
        for request in requests
        if any(arrival_ns > request.arrival_ns and level < request.priority for level, arrival_ns in latest_ns.items())
    ]
    for request in requests:
        latest_ns[request.priority] = max(latest_ns.get(request.priority, 0), request.arrival_ns)
    return frozenset(overtaken)
