"""The table of requests that were accepted and not answered, and every way in which one of them ends.

Each request leaves the table once, by one `pop`: with its worker's answer, with a refusal, or silently with its client.
A request that its worker returns, or has not begun when the worker dies, stays and is queued again. Lives in the
batcher.
"""

from shoal.batcher import statistics
from shoal.batcher.child_traces import TraceParent, TraceRoot
from shoal.batcher.failure_log import log_failure
from shoal.batcher.finished_requests import id_of, text_of
from shoal.batcher.holders import Holders
from shoal.batcher.late_clients import LateClients
from shoal.batcher.peers import ClientPeer, OpenRequest, Reply, RunningBatch, ScheduledModel, WorkerPeer
from shoal.batcher.poison import Poison
from shoal.batcher.scheduling.admission import LateError
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.batcher.scheduling.suspects import PoisonError
from shoal.batcher.scheduling.trials import TrialScheduler
from shoal.batcher.splits import Splits
from shoal.batcher.statistics import BACKEND, CANCELED, NO_COMPUTE, REJECTED, count_success
from shoal.errors import InternalError, UnavailableError
from shoal.finished_request import FinishedRequest
from shoal.reasons import Reason, pack_poison, pack_times
from shoal.shm import records
from shoal.shm.counters import CELL
from shoal.shm.layout import NUMBER_BITS, REPLY, P, Record
from shoal.timing import Points

#: Most replies that wait for room in a client's ring; a client with more gets no further responses of its streams
#: (ours). Also the most responses of a stream that `preserve_ordering` keeps back.
MAX_BACKLOG = 65536

_POISON_REFUSED = CELL["poison_refused"]


class OpenRequests:
    """The table of open requests. Clients for which a reply was written are added to `written`, models with new figures
    to `counted`."""

    __slots__ = (
        "_counted", "_holders", "_late", "_responded", "_written", "awake", "by_key", "last_chances", "poison",
        "splits",
    )  # fmt: skip

    def __init__(
        self, holders: Holders, written: set[ClientPeer], counted: set[ScheduledModel], late: LateClients,
        splits: Splits,
    ) -> None:  # fmt: skip
        #: The table itself. Changed by the methods that end a request, and by all code that accepts one.
        self.by_key: dict[int, OpenRequest] = {}
        #: The requests that canaries have, or have failed to answer.
        self.splits = splits
        self._late = late
        self._holders = holders
        self._written = written
        self._counted = counted
        #: Models that may have a batch to form, by id; this class adds the models in whose queue requests may have
        #: waited for one that has left. Changed by all code that queues or removes a model's requests.
        self.awake: dict[int, ScheduledModel] = {}
        #: Keys of requests that are not executed again if their instance dies: an instance has died executing them, or
        #: they are on trial, executed alone by the TrialScheduler given here, which is notified of their end.
        self.last_chances: dict[int, TrialScheduler | None] = {}
        #: Keys of requests whose clients have been sent responses, but not the last one.
        self._responded: set[int] = set()
        #: Finds requests that end their instances; None if requests are not refused for that. Set once.
        self.poison: Poison | None = None

    def respond(
        self, key: int, status: int, ref: int, header: int, now_ns: int, num_pieces: int = 0
    ) -> ScheduledModel | None:
        """Send a response that is not the last; the client holds its block `ref` from now on. Returns the model if the
        request fails now, because too many of its replies wait; else None."""
        request = self.by_key.get(key)
        if request is None:
            return None
        client, model, number, _, _, _, _, _ = request
        num_kept = 0 if model.order is None else model.order.num_kept(key)
        if len(client.backlog) >= MAX_BACKLOG or num_kept >= MAX_BACKLOG:
            return self.fail(key, Reason.NO_MEMORY, now_ns, BACKEND)
        version = 0
        if model.split_id and key in self.splits.routed:
            if self._is_held_back(key, request, status):
                return None
            version = model.version
        if model.recording is not None:
            model.recording.note_part(request, (status, ref, header, num_pieces), now_ns)
        if ref:
            self._holders.hold_part(ref, key)
        if key not in self._responded:
            self._responded.add(key)
            statistics.count_first_response(model.row, request[5], now_ns)
        part = records.part_record(number, status, ref, header, num_pieces)
        self._send(model, key, client, records.of_version(part, version) if version else part, is_last=False)
        return None

    def answer(
        self, key: int, status: int, ref: int, header: int, compute: statistics.Compute, now_ns: int,
        num_pieces: int = 0, running: RunningBatch | None = None,
    ) -> bool:  # fmt: skip
        """Send a worker's final answer. True: the client holds its block `ref` from now on. `running` is the executed
        batch, in which this request still counts as missing."""
        request = self.by_key.pop(key, None)
        if request is None:
            return False
        client, model, number, _, _, start_ns, queue_ns, queued = request
        reply: Record = (REPLY, number, status, ref, header)
        if now_ns - start_ns > model.finished.slow_ns or status:
            # The end is noted before the reply is sent: the reply gives the block back, and the trace is forgotten.
            has_block = not self._late.may_have_answer(key)
            if has_block:
                self._note_end(request, status, ref, header, compute, now_ns, running, num_pieces)
            if model.split_id and self._answer_in_split(key, request, status, ref, header, compute, now_ns, running):
                return False
            if has_block and model.mirror is not None and key not in self._responded:
                answer = status, ref, header, num_pieces
                if model.mirror.note(request, answer, compute, now_ns, running):
                    reply = records.lent_reply_record(reply)
        if ref:
            self._holders.hold(ref, key)
        if num_pieces or client.traced:
            times = client.times(number, model, queue_ns, compute)
            reply = records.traced_reply_record(number, status, ref, header, times, num_pieces) + reply[P.IS_LENT :]
            if number in client.traced:
                self._end_trace(client, number, model, start_ns, times, now_ns, running)
        if model.order is None:  # copied from _send: a call would double the time
            client.send(reply)
            self._written.add(client)
        else:
            self._send(model, key, client, reply)
        if status:
            statistics.count_failure(model.row, statistics.reason_of_status(status, model.FAILURE), start_ns, now_ns)
        else:
            count_success(model.row, queued.rows, compute, start_ns, queue_ns, now_ns)
        if model.row.first_response_bounds and key not in self._responded:
            statistics.count_first_response(model.row, start_ns, now_ns)
        if model.sharing is not None:
            is_only = bool(ref) and not status and key not in self._responded
            only = (ref, header, num_pieces) if is_only else None
            model.sharing.settle(model, key, only, now_ns, is_executed=True)
        if self.last_chances or self._responded:
            self._forget(key, model, now_ns)
        return ref != 0

    def answer_again(self, key: int, ref: int, header: int, num_pieces: int, hit_ns: int, now_ns: int) -> None:
        """Answer a request with the answer to an equal one; finding that answer has taken `hit_ns`."""
        request = self.by_key.pop(key)
        client, model, number, _, _, start_ns, queue_ns, _ = request
        if model.recording is not None:
            model.recording.note(request, (0, ref, header, num_pieces), NO_COMPUTE, now_ns)
        self._holders.hold(ref, key)
        times = queue_ns, *NO_COMPUTE  # sent without a trace, too: the client's TRACE record may come later
        if client.traced:
            self._end_trace(client, number, model, start_ns, times, now_ns)
        if model.order is not None:
            model.order.begin((key,))
        self._send(model, key, client, records.traced_reply_record(number, 0, ref, header, times, num_pieces))
        statistics.count_cache_hit(model.row, hit_ns, start_ns, queue_ns, now_ns)
        self._counted.add(model)

    def fail(self, key: int, reason: Reason, now_ns: int, cell: int, detail: int = 0) -> ScheduledModel | None:
        """End a request that no worker will answer; returns its model, or None if the request had ended before. `cell`
        counts the failure, `detail` is the number in the reason's sentence."""
        request = self.by_key.pop(key, None)
        if request is None:
            return None
        client, model, number, _, _, start_ns, queue_ns, _ = request
        if not self._late.may_have_answer(key):
            self._note_end(request, InternalError.wire, 0, 0, NO_COMPUTE, now_ns, None, 0, reason, detail)
        if model.split_id and self._fail_in_split(key, request, reason, now_ns, cell):
            return model
        if key not in self._responded:
            statistics.count_first_response(model.row, start_ns, now_ns)
        self._forget(key, model)
        times: tuple[int, ...] = ()
        if client.traced:
            times = client.times(number, model, queue_ns, NO_COMPUTE)
            self._end_trace(client, number, model, start_ns, times, now_ns)
        self._send(model, key, client, records.refusal_record(number, InternalError.wire, reason, detail, times))
        statistics.count_failure(model.row, cell, start_ns, now_ns)
        self._counted.add(model)
        if model.sharing is not None:
            model.sharing.settle(model, key, None, now_ns, is_executed=False)
        return model

    # --- requests of a split's versions: overridden in split_requests.py ---

    def _answer_in_split(
        self, key: int, request: OpenRequest, status: int, ref: int, header: int, compute: statistics.Compute,
        now_ns: int, running: RunningBatch | None,
    ) -> bool:  # fmt: skip
        """Handle the answer of one of a split's versions. True if the request was ended here or goes to the stable
        version; False if `answer` is to send the reply."""
        return False

    def _fail_in_split(self, key: int, request: OpenRequest, reason: Reason, now_ns: int, cell: int) -> bool:
        """Handle a request that one of a split's versions will not answer. True if the request goes to the stable
        version; False if `fail` is to refuse it."""
        return False

    def _is_held_back(self, key: int, request: OpenRequest, status: int) -> bool:
        """Whether a response that is not the last is withheld from the client: another version may answer instead."""
        return False

    def _is_expendable(self, key: int, reason: Reason) -> bool:
        """Whether another version executes a request that fails now, for this reason."""
        return False

    # --- requests that were slow or have failed ---

    def _note_end(
        self, request: OpenRequest, status: int, ref: int, header: int, compute: statistics.Compute, now_ns: int,
        running: RunningBatch | None, num_pieces: int, reason: int = 0, detail: int = 0,
    ) -> None:  # fmt: skip
        """Keep a slow or failed request among its model's finished ones, and record it if its model is recorded. Called
        before the request's reply is sent; `ref`, `header` and `num_pieces` are a worker's answer."""
        client, model, number, block, span, start_ns, queue_ns, queued = request
        start_ns = min(start_ns, now_ns)
        if model.recording is not None:
            answer = status, ref, header, num_pieces
            model.recording.note(request, answer, compute, now_ns, running, (reason, detail))

        def make() -> FinishedRequest:
            trace = client.trace_parent(number)
            high, low = (0, 0) if trace is None else trace.root.trace_id
            points = Points(0, start_ns, queue_ns, *(model.points(compute) if compute[0] else NO_COMPUTE), now_ns)
            worker = None if running is None else running.worker
            said = worker.slab.open(ref) if status and ref and worker is not None else None
            return FinishedRequest(
                model.id,
                client.kind,
                id_of(client.block(block), span),
                f"{high:016x}{low:016x}" if high or low else "",
                queued.rows,
                points,
                status,
                reason,
                detail,
                "" if said is None else str(text_of(said, header), "utf-8", "replace"),
                None if running is None else running.execution(queued.key),
            )

        if status:
            if (kept := model.finished.note_failed(now_ns, make)) is not None:
                log_failure(model, kept, running)
        else:
            model.finished.note_slow(now_ns - start_ns, now_ns, make)

    # --- traces ---

    def trace(self, client: ClientPeer, record: Record) -> None:
        """Trace the open request of a TRACE record from now on, for its client."""
        _, number, is_shown, high, low, *_ = record
        key = client.first_key + number
        if key in self.by_key:
            client.traced[number] = TraceParent(TraceRoot(key, is_shown=bool(is_shown), trace_id=(high, low)), 0)

    def trace_child(self, client: ClientPeer, number: int, parent: int) -> None:
        """Put a new call into the trace of its parent request (key `parent`), if the parent is open and traced."""
        asked = self.by_key.get(parent)
        if asked is None or not asked[0].traced:
            return
        found = asked[0].trace_parent(asked[2])
        if found is not None and client.first_key + number in self.by_key:
            client.traced[number] = TraceParent(found.root, parent)

    def send_child_trace(
        self, trace: TraceParent, key: int, model: ScheduledModel, times: tuple[int, ...], now_ns: int, *,
        is_call: bool = False, is_decoupled_step: bool = False,
    ) -> None:  # fmt: skip
        """Send an ended child's times to the front end whose traced request caused the child; not after the end of the
        traced request, and not to guests. `times` are START_NS to COMPUTE_END_NS (layout.T)."""
        root, parent = trace
        asked = self.by_key.get(root.key)
        if asked is None or not asked[0].is_front_end:
            return
        client, number = asked[0], asked[2]
        above = parent if parent != root.key else 0
        record = records.child_trace_record(
            number, key, above, model.id, model.version, times, max(times[0], now_ns), is_call=is_call
        )
        num_left, max_unread = root.room(key, is_decoupled_step=is_decoupled_step)
        if num_left > 0 and client.send_child_trace(record, max_unread):
            root.note_sent(parent)
            self._written.add(client)

    def _end_trace(
        self, client: ClientPeer, number: int, model: ScheduledModel, start_ns: int, times: tuple[int, ...],
        now_ns: int, running: RunningBatch | None = None,
    ) -> None:  # fmt: skip
        """Forget the trace of a request that has ended; a child's times go to the front end of the trace's root
        request, and the EXECUTION of a root that `is_shown` goes to its client.

        `start_ns`, from a client that may run users' code, is clamped to now.
        """
        trace = client.traced.pop(number, None)
        if trace is None:
            return
        if trace.root.is_shown and not trace.parent and running is not None:
            execution = running.execution(client.first_key + number)
            if execution is not None:
                client.send(records.execution_record(number, execution))
        if trace.parent:
            times = min(start_ns, now_ns), *times
            self.send_child_trace(trace, client.first_key + number, model, times, now_ns, is_call=True)

    def turn_away(self, client: ClientPeer, number: int, reason: Reason) -> None:
        """Refuse a request that was never accepted; it counts in no statistics."""
        client.send(records.refusal_record(number, UnavailableError.wire, reason))
        self._written.add(client)

    def cancel(self, key: int, now_ns: int, *, is_sure: bool = True) -> ScheduledModel | None:
        """Cancel a request; returns its model if one of the model's workers has the request, else None. Without
        `is_sure`, the client may still wait for the answer, and a queued request stays in its queue."""
        request = self.by_key.get(key)
        if request is None:
            return None
        model = request[1]
        if not is_sure:
            return model
        if model.split_id:
            self.splits.cancel(key)
        # For patience: it refuses no request of a sequence, and steps of ensembles have no client of their own.
        counts = request[0].is_front_end and model.sequences is None
        is_waiting = model.scheduler.cancel(key) or (model.sharing is not None and model.sharing.cancel(key))
        if not is_waiting:
            if counts and key not in self._responded:
                model.patience.answer_became_useless()
            return model
        if counts:
            cells = model.row.cells
            model.patience.gave_up(now_ns - request[6], model.row.num_succeeded + cells[model.FAILURE], now_ns)
        self.fail(key, Reason.CANCELLED, now_ns, CANCELED)
        self.awake[model.id] = model
        return None

    def reschedule(self, key: int, now_ns: int) -> None:
        """Queue a request that its worker has returned, behind all others."""
        request = self.by_key.get(key)
        if request is None:
            return
        model = request[1]
        if self._late.has(key):
            self.drop(key)
        elif model.sequences is not None:
            model.sequences.add_again(request[-1])
        else:
            self.enqueue(model, request[-1], now_ns)

    def enqueue(self, model: ScheduledModel, queued: QueuedRequest, now_ns: int) -> None:
        """Put an open request into its model's queue; refuse the request if the queue does not take it."""
        try:
            model.scheduler.add(queued, now_ns)
        except (UnavailableError, SequenceError) as error:
            self.refuse(queued.key, error, now_ns)
        self.wake(model)

    def wake(self, model: ScheduledModel) -> None:
        """Note that a model's queue has changed: this step forms its batches and publishes its figures."""
        self._counted.add(model)
        self.awake[model.id] = model

    def refuse(self, key: int, error: UnavailableError | SequenceError, now_ns: int) -> None:
        """Refuse a request with the error that its model's scheduler raised when the request was added."""
        if isinstance(error, PoisonError):
            self.by_key[key][1].row.cells[_POISON_REFUSED] += 1
            self.fail(key, Reason.POISON, now_ns, REJECTED, pack_poison(error.num_deaths, error.left_ns))
        elif isinstance(error, LateError):
            self.fail(key, Reason.TOO_LATE, now_ns, REJECTED, pack_times(error.needed_ns, error.left_ns))
        elif isinstance(error, SequenceError):
            self.fail(key, error.reason, now_ns, REJECTED)
        else:
            self.fail(key, Reason.QUEUE_FULL, now_ns, REJECTED)

    def refuse_queued(self, model: ScheduledModel, reason: Reason, now_ns: int) -> None:
        """Refuse all requests that wait for a model which is served no more."""
        waiting = [] if model.sharing is None else model.sharing.drain(model.id)
        for key in (*[queued.key for queued in model.scheduler.drain()], *waiting):
            self.fail(key, reason, now_ns, REJECTED)

    def not_begun(self, worker: WorkerPeer, reason: Reason) -> list[QueuedRequest]:
        """Requests that a dead worker had in its ring and had not begun to execute."""
        begun = _batch_begun(worker, reason)
        given = [key for key, running in worker.missing.items() if running.number > begun]
        return [
            request[-1] for key in given if (request := self.by_key.get(key)) is not None and not self._late.has(key)
        ]

    def take_back(self, worker: WorkerPeer, reason: Reason, detail: int, now_ns: int) -> None:
        """Queue a dead worker's unbegun requests again; requests that it was executing run once more, or fail.

        A request in execution runs once more, alone, so that a request that kills instances is found. It fails if its
        model may not run a request again, if it was run again before, or if the execution exceeded a limit.
        """
        model, poison = worker.model, self.poison
        begun = _batch_begun(worker, reason)
        if model.recording is not None:
            for key, running in worker.missing.items():
                request = None if self._late.may_have_answer(key) else self.by_key.get(key)
                if running.number <= begun and request is not None:
                    model.recording.note_death(request, running, (reason, detail), now_ns)
        if poison is not None:
            poison.note_death(worker, begun, reason, detail, now_ns)
        for key, running in reversed(worker.missing.items()):  # the last first: each is queued in front of all others
            if running.number > begun:
                self._queue_again(key)
            elif model.split_id and self._is_expendable(key, reason):
                self.fail(key, reason, now_ns, BACKEND, detail)  # `fail` has the stable version execute it at once
            # Not again if it was executed before, or if its client has responses of this execution.
            elif (
                reason is Reason.INSTANCE_DIED
                and model.may_run_again
                and not (key in self.last_chances or key in self._responded)
            ):
                self.last_chances[key] = None
                self._queue_again(key)
            else:
                self.fail(key, reason, now_ns, BACKEND, detail)
        if model.trials is not None:
            for queued, refusal in model.trials.refused(now_ns):
                self.refuse(queued.key, refusal, now_ns)

    def _queue_again(self, key: int) -> None:
        """Queue a request whose instance died, before all others and for a batch of its own."""
        if (request := self.by_key.get(key)) is None:
            return
        if self._late.has(key):
            self.drop(key)
            return
        model = request[1]
        model.scheduler.add_first(request[-1])
        self._counted.add(model)

    def _forget(self, key: int, model: ScheduledModel, answered_ns: int = 0) -> None:
        """Forget a request that has ended. `answered_ns`: when a worker answered it, in monotonic ns; 0 if none did."""
        self._responded.discard(key)
        trials = self.last_chances.pop(key, None)
        if trials is not None:
            trials.ended(key, answered_ns, has_lived=answered_ns != 0)
            model.end_trials()

    def drop(self, key: int) -> None:
        """Remove a request that its client has not sent again: no worker has the request any more, or the client does
        not wait for it. A request that the client sends later nevertheless is queued then."""
        model = self.by_key.pop(key)[1]
        self._responded.discard(key)
        self.splits.forget(key)
        if (trials := self.last_chances.get(key)) is not None:
            self.last_chances[key] = None
            trials.ended(key, 0, has_lived=False)
        self._late.drop(key)
        if model.order is not None:
            self._send_all(model.order.forget(lambda each: each == key))

    def forget(self, client: ClientPeer) -> list[tuple[int, ScheduledModel]]:
        """Remove a dead client's requests. Returns the running ones (key and model), which end without effect."""
        # Only the orders of models with open requests: a response is kept back only while an earlier request is open.
        orders = {request[1].order for request in self.by_key.values()}
        running = []
        for key in [key for key, request in self.by_key.items() if request[0] is client]:
            model = self.by_key.pop(key)[1]
            self._forget(key, model)
            if model.sharing is not None:
                model.sharing.abandon(model, key)
            if not model.scheduler.cancel(key):
                running.append((key, model))
            self._counted.add(model)
            self.awake[model.id] = model
        owner = client.owner
        for key in [key for key in self.last_chances if key >> NUMBER_BITS == owner]:
            del self.last_chances[key]
        self.splits.forget_client(owner)
        for order in orders:
            if order is not None:
                self._send_all(order.forget(lambda key: key >> NUMBER_BITS == owner))
        return running

    def _send(
        self, model: ScheduledModel, key: int, client: ClientPeer, reply: Record, *, is_last: bool = True
    ) -> None:
        """Send a reply to the client; if the model keeps responses in order, when it is this request's turn."""
        if model.order is None:
            client.send(reply)
            self._written.add(client)
        else:
            self._send_all(model.order.admit(key, (client, reply), is_last=is_last))

    def _send_all(self, replies: list[Reply]) -> None:
        for client, reply in replies:
            client.send(reply)
            self._written.add(client)


def _batch_begun(worker: WorkerPeer, reason: Reason) -> int:
    """Number of the batch that a dead worker began last. If the worker has damaged its memory, its own figure is
    ignored, and all its batches count as begun."""
    return worker.num_batches if reason is Reason.DAMAGED else worker.batch_begun
