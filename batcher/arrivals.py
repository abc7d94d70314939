"""The arrival of requests in the batcher: each is queued for its model, or refused at once."""

from collections.abc import Callable, Container, Mapping

from shoal.batcher.ensemble import Ensemble
from shoal.batcher.guests import checked
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import ClientPeer, ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.batcher.splits import own_flags
from shoal.batcher.statistics import REJECTED
from shoal.deterministic import ALONE, ALONE_KEY
from shoal.errors import UnavailableError
from shoal.fault import IS_ARMED, reached
from shoal.reasons import Reason
from shoal.sequences import FLAGS
from shoal.shm.layout import LayoutError, Q
from shoal.shm.ring import Record


class Arrivals:
    """Handles REQUEST and CHILD_REQUEST records. A model whose queue has changed is added to `counted` (its figures are
    published) and to `awake` (its batches are formed)."""

    def __init__(
        self, models: Mapping[int, ScheduledModel], workers: Mapping[int, WorkerPeer], requests: OpenRequests,
        counted: set[ScheduledModel], awake: dict[int, ScheduledModel], *, deadline_ns: int,
        send_cancel: Callable[[int, ScheduledModel], None],
    ) -> None:  # fmt: skip
        self._models = models
        self._workers = workers
        self._requests = requests
        self._open = requests.by_key
        self._counted = counted
        self._awake = awake
        #: Every request is to be answered this long after its start, in ns, whatever its client says; 0 = no limit.
        self._deadline_ns = deadline_ns
        self._send_cancel = send_cancel
        # Used only by a dead batcher's successor. `_in_hand`: keys of requests that workers have; `_resent_keys`: keys
        # of requests that clients have sent again; `_resent`: requests of sequences with the times when their clients
        # began to receive them, kept until all front ends have sent their open requests again.
        self.is_resuming = False
        self._resent: list[tuple[int, ScheduledModel, QueuedRequest]] | None = None
        self._in_hand: set[int] = set()
        self._answered: Container[int] = ()
        self._resent_keys: set[int] = set()

    def resume(self, in_hand: set[int], answered: Container[int] = ()) -> None:
        """Begin to take over a dead batcher's requests. Clients send their open requests again, behind the records that
        they had written for the dead batcher. `in_hand` are keys of requests that workers have, `answered` keys of
        requests that were answered before the take-over."""
        self.is_resuming = True
        self._in_hand = in_hand
        self._answered = answered

    def keep_sequences_back(self) -> None:
        """Queue no request of a sequence before `queue_sequences`: an earlier request of the same sequence may still
        come from another front end."""
        self._resent = []

    def queue_sequences(self, now_ns: int) -> None:
        """Queue the requests of sequences that were kept back, in the order in which they first arrived."""
        resent, self._resent = self._resent, None
        if resent is None:
            return
        for _, model, queued in sorted(resent, key=lambda each: each[0]):
            if queued.key in self._open:  # otherwise its client has died
                self._requests.enqueue(model, queued, now_ns)
        for model in self._models.values():
            if model.sequences is not None:
                model.sequences.end_restoring()

    def end_resuming(self) -> None:
        """Treat all further requests as new: every client has sent its open requests again."""
        self.is_resuming = False
        self._in_hand = set()
        self._answered = ()
        self._resent_keys.clear()

    def was_resent(self, key: int) -> bool:
        """Whether a client has sent this request again to a dead batcher's successor."""
        return key in self._resent_keys

    def accept(self, client: ClientPeer, record: Record, now_ns: int) -> None:
        """Queue or refuse the request of a REQUEST record; the request's block stays the client's. Raises
        LayoutError for a malformed record of a guest."""
        (
            _, number, model_id, block, header, rows, shape_key, priority, timeout_us,
            correlation, flags, start_ns, _, low, high, deadline_ns,
        ) = record  # fmt: skip
        key = client.first_key + number
        if number > client.last_number:
            client.last_number = number
        elif not self.is_resuming or key in self._resent_keys:
            return  # a client has sent again a request that this batcher has already
        if self.is_resuming:
            self._resent_keys.add(key)
            if key in self._answered:
                return
        model = self._models.get(model_id)
        if model is None or model.is_failed:
            model = self._choose_version(client, model, record, now_ns)
            if model is None:
                return
            flags = own_flags(flags)
            if key in self._requests.splits.routed:
                low = high = 0  # no digest: the response cache, which knows no splits, must not answer for a canary
        if client.is_guest:
            shape_key, start_ns = checked(client, model, record, now_ns)
        if flags >= ALONE:
            shape_key, flags = ALONE_KEY | key, flags & FLAGS
        if deadline_ns or self._deadline_ns or model.patience.limit_ns:
            model.heed_deadlines()
            limit_ns = model.patience.current_ns(model.scheduler.pending, now_ns)
            deadline_ns = self._smallest(deadline_ns, start_ns, limit_ns)
        queued = QueuedRequest(key, rows, shape_key, now_ns, priority, timeout_us, deadline_ns, correlation, flags)
        self._open[key] = (client, model, number, block, header, start_ns, now_ns, queued)
        if self.is_resuming and self._was_begun(key, model, now_ns):
            return
        if model.sequences is not None and (shape_key >= ALONE_KEY or self._resent is not None):
            self._keep_from_sequence(model, queued, start_ns, now_ns)
            return
        sharing = model.sharing
        if sharing is not None and client.is_front_end and sharing.take(model, queued, (low, high)):
            return
        try:  # copied from OpenRequests.enqueue: a call would double the time
            model.scheduler.add(queued, now_ns)
        except (UnavailableError, SequenceError) as error:
            self._requests.refuse(key, error, now_ns)
            return
        self._counted.add(model)
        self._awake[model.id] = model
        if IS_ARMED:
            reached("accepted")

    def _choose_version(
        self, client: ClientPeer, model: ScheduledModel | None, record: Record, now_ns: int
    ) -> ScheduledModel | None:
        """The version that executes a request whose model id is a split's. None if no version does, because the id is
        no split's or `model` has failed. Such a request is turned away, unless a successor has it already from a
        worker's ring."""
        key = client.first_key + record[Q.NUMBER]
        if model is None:
            holder = None
            if self.is_resuming and key in self._in_hand:
                holder = next((each.model for each in self._workers.values() if key in each.missing), None)
            chosen = self._requests.splits.choose(
                record[Q.MODEL], key, record[Q.ROWS], record[Q.CORRELATION], record[Q.FLAGS], now_ns, holder
            )
            if chosen is not None:
                return chosen
        if not (self.is_resuming and key in self._open):
            reason = Reason.NOT_READY if model is None else Reason.MODEL_FAILED
            self._requests.turn_away(client, record[Q.NUMBER], reason)
        return None

    def _was_begun(self, key: int, model: ScheduledModel, now_ns: int) -> bool:
        """Whether a request that was sent again need not be queued: a worker has the request from the dead batcher, or
        the request may have been begun, must not be executed a second time, and is failed here."""
        if key in self._in_hand:
            if model.order is not None:
                model.order.begin((key,))
            return True
        if self._may_be_begun(model):
            # A worker may have this request, and the client some of its responses: it cannot be executed again.
            self._requests.fail(key, Reason.TAKEN_OVER, now_ns, REJECTED)
            self._send_cancel(key, model)
            return True
        return False

    def _keep_from_sequence(self, model: ScheduledModel, queued: QueuedRequest, start_ns: int, now_ns: int) -> None:
        """Fail a request to a sequence model that asks to run alone; keep any other request back until
        `queue_sequences`."""
        if queued.shape_key >= ALONE_KEY:
            self._requests.fail(queued.key, Reason.NOT_ALONE, now_ns, REJECTED)
        elif self._resent is not None:
            self._resent.append((start_ns, model, queued))

    def accept_child(self, client: ClientPeer, record: Record, now_ns: int) -> None:
        """Accept a CHILD_REQUEST, a call that a model made for another request. Raises LayoutError if a guest sent
        the record."""
        if client.is_guest:
            raise LayoutError(f"guest {client.owner} asks on behalf of {record[Q.PARENT]:#x}")
        # a request that was sent again, and is open already, stays in its trace
        is_new = record[Q.NUMBER] > client.last_number
        self.accept(client, record, now_ns)
        if is_new:
            self._requests.trace_child(client, record[Q.NUMBER], record[Q.PARENT])

    def _smallest(self, deadline_ns: int, start_ns: int, patience_ns: int) -> int:
        """The earliest of a request's deadlines: the client's (`deadline_ns`), the server's, and the time
        (`patience_ns` after the start) at which clients are expected to give up; 0 if there is none."""
        deadlines_ns = [deadline_ns] if deadline_ns else []
        deadlines_ns += [start_ns + limit_ns for limit_ns in (self._deadline_ns, patience_ns) if limit_ns]
        return min(deadlines_ns, default=0)

    def _may_be_begun(self, model: ScheduledModel) -> bool:
        """Whether a dead batcher may have begun a request that its client sends again, so that the request must not be
        executed a second time."""
        if isinstance(model, Ensemble):
            return not model.may_run_again
        if model.sequences is not None and model.sequences.is_iterative:
            return True  # how often such a request was executed is unknown to a successor
        return any(worker.overlaps for worker in self._workers.values() if worker.model is model)
