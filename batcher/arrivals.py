"""Requests as they come in: queued for their model, or refused at once. Lives in the batcher."""

from collections.abc import Callable, Container, Mapping

from shoal.batcher.ensemble import Ensemble
from shoal.batcher.guests import checked
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import Client, Model, Worker
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.batcher.statistics import REJECTED
from shoal.errors import UnavailableError
from shoal.reasons import Reason
from shoal.shm.layout import LayoutError, Q
from shoal.shm.ring import Record


class Arrivals:
    """Models that have got one join `counted` and `awake`."""

    def __init__(
        self, models: Mapping[int, Model], workers: Mapping[int, Worker], requests: OpenRequests, counted: set[Model],
        awake: dict[int, Model], *, deadline_ns: int, tell_cancelled: Callable[[int, Model], None],
    ) -> None:  # fmt: skip
        self._models = models
        self._workers = workers
        self._requests = requests
        self._counted = counted
        self._awake = awake
        #: In how long every request is to be answered, whatever its client says; 0 = in any time.
        self._deadline_ns = deadline_ns
        self._tell_cancelled = tell_cancelled
        # Only while a dead batcher's place is taken: the requests that workers have from it, and those that have come;
        # until all front ends have spoken, those of sequences, with the times when their clients began to receive them.
        self.is_resuming = False
        self._said_again: list[tuple[int, Model, QueuedRequest]] | None = None
        self._in_hand: set[int] = set()
        self._answered: Container[int] = ()
        self._heard: set[int] = set()

    def resume(self, in_hand: set[int], answered: Container[int] = ()) -> None:
        """Clients send their open requests again, behind records that they wrote before they knew of this batcher.
        Workers have some of the requests, and some were answered before their client sent them again."""
        self.is_resuming = True
        self._in_hand = in_hand
        self._answered = answered

    def keep_sequences_back(self) -> None:
        """Queue no request of a sequence before `queue_sequences`: an earlier one may come by another front end."""
        self._said_again = []

    def queue_sequences(self, now_ns: int) -> None:
        """Queue the requests of sequences that were kept back, if any were, in the order in which they had come."""
        said_again, self._said_again = self._said_again, None
        if said_again is None:
            return
        for _, model, queued in sorted(said_again, key=lambda each: each[0]):
            if queued.key in self._requests:  # else its client has died
                self._queue(model, queued, now_ns)
        for model in self._models.values():
            if model.sequences is not None:
                model.sequences.end_restoring()

    def end_resuming(self) -> None:
        """Every client has said what is open: all that comes from now on is new."""
        self.is_resuming = False
        self._in_hand = set()
        self._answered = ()
        self._heard.clear()

    def has_heard(self, key: int) -> bool:
        """Whether a client has sent this request again."""
        return key in self._heard

    def accept(self, client: Client, record: Record, now_ns: int) -> None:
        """One REQUEST: it is queued, or refused. Raises LayoutError for what no client says."""
        (
            _, number, model_id, block, header, rows, shape_key, priority, timeout_us,
            correlation, flags, start_ns, _, low, high, deadline_ns,
        ) = record  # fmt: skip
        key = client.first_key + number
        if number > client.last_number:
            client.last_number = number
        elif not self.is_resuming or key in self._heard:
            return  # said again to a batcher that had heard it the first time
        if self.is_resuming:
            self._heard.add(key)
            if key in self._answered:
                return
        model = self._models.get(model_id)
        if model is None or model.is_failed:
            if self.is_resuming and key in self._requests:
                return  # a worker that has it from a dead batcher answers
            self._requests.turn_away(client, number, Reason.NOT_READY if model is None else Reason.MODEL_FAILED)
            return
        if client.is_guest:
            shape_key, start_ns = checked(client, model, record, now_ns)
        if deadline_ns or self._deadline_ns:
            model.heed_deadlines()
            deadline_ns = self._smallest(deadline_ns, start_ns)
        queued = QueuedRequest(key, rows, shape_key, now_ns, priority, timeout_us, deadline_ns, correlation, flags)
        self._requests[key] = (client, model, number, block, header, start_ns, now_ns, queued)
        if self.is_resuming:
            if key in self._in_hand:
                if model.order is not None:
                    model.order.begin((key,))
                return
            if self._may_be_begun(model):
                # It may be among those that a worker has, and its client may have seen some of the answers.
                self._requests.fail(key, Reason.TAKEN_OVER, now_ns, REJECTED)
                self._tell_cancelled(key, model)
                return
        sharing = model.sharing
        if sharing is not None and client.is_front_end and sharing.take(model, queued, (low, high)):
            return
        if self._said_again is not None and model.sequences is not None:
            self._said_again.append((start_ns, model, queued))
            return
        self._queue(model, queued, now_ns)

    def accept_child(self, client: Client, record: Record, now_ns: int) -> None:
        """Accept a CHILD_REQUEST, a call made for another request. Raises LayoutError for a guest's."""
        if client.is_guest:
            raise LayoutError(f"guest {client.owner} asks on behalf of {record[Q.PARENT]:#x}")
        is_new = record[Q.NUMBER] > client.last_number  # what was open before stays in the trace that it was in
        self.accept(client, record, now_ns)
        if is_new:
            self._requests.trace_child(client, record[Q.NUMBER], record[Q.PARENT])

    def _queue(self, model: Model, queued: QueuedRequest, now_ns: int) -> None:
        try:
            model.scheduler.add(queued, now_ns)
        except (UnavailableError, SequenceError) as error:
            self._requests.refuse(queued.key, error, now_ns)
            return
        self._counted.add(model)
        self._awake[model.id] = model

    def _smallest(self, deadline_ns: int, start_ns: int) -> int:
        """Of a client's deadline and the server's, of which there is at least one."""
        latest_ns = start_ns + self._deadline_ns
        return latest_ns if not deadline_ns else min(deadline_ns, latest_ns) if self._deadline_ns else deadline_ns

    def _may_be_begun(self, model: Model) -> bool:
        """Whether a dead batcher may have begun what its client says again, so that it must not begin here."""
        if isinstance(model, Ensemble):
            return not model.may_run_again
        if model.sequences is not None and model.sequences.is_iterative:
            return True  # what is executed again and again, and how often it was, its successor cannot know
        return any(worker.overlaps for worker in self._workers.values() if worker.model is model)
