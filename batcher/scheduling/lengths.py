"""Batching by length: requests of different lengths share a batch as far as padding costs less than waiting.

A request's shape key is its length. A batch is as long as its longest request, or as the bucket of that request, and
all its rows are padded to that length: `elements` are rows x length. The oldest request is always in the next batch. A
request of another length joins that batch if the padding that it adds takes less time than one more execution would. An
execution takes a fixed time and a time per element, both learned from earlier executions, and trusted for no more
padding than the largest of those executions had elements. Requests that do not join wait for a batch of their own.

    pad     as just described
    bucket  no request joins a batch of another bucket
    pack    nothing is padded, so all join: elements are the sum of the lengths

Rules: a batch has at most max_batch_size rows and, unless its only request has more, max_batch_elements. With a queue
delay, a batch that could still grow waits until its oldest request has waited for that delay. Pure policy, runs in the
batcher.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from shoal.batcher.scheduling.batch_account import BatchReason, account, noted, summary
from shoal.batcher.scheduling.payload import Batch, make_batch
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.batcher.scheduling.queue_scheduler import QueueScheduler
from shoal.deterministic import ALONE_KEY
from shoal.model_config.ragged_batching import Lengths, Strategy

#: The oldest requests, as many as LOOK_AHEAD largest batches have, are searched for requests that fit into the next
#: batch (ours).
LOOK_AHEAD = 4
#: Executions that are needed before the line through their times is used (ours).
KNOWN = 8
#: The factor by which each execution reduces the weight of all earlier executions (ours): to half after 34.
FADE = 0.98


class CostLine:
    """The time of an execution by its elements, a line fitted through the last executions."""

    __slots__ = ("_elements", "_ns", "_num", "_products", "_squares", "_weight", "largest")

    def __init__(self) -> None:
        #: The most elements of an execution so far: nothing is known of larger ones, neither time nor memory.
        self.largest = 0
        # Changed by learn: fading sums.
        self._num = 0
        self._weight = self._elements = self._ns = self._squares = self._products = 0.0

    def learn(self, elements: int, ns: int) -> None:
        """Note that an execution of `elements` elements took `ns` nanoseconds."""
        self._num += 1
        self.largest = max(self.largest, elements)
        self._weight = FADE * self._weight + 1
        self._elements = FADE * self._elements + elements
        self._ns = FADE * self._ns + ns
        self._squares = FADE * self._squares + elements * elements
        self._products = FADE * self._products + elements * ns

    def fixed_elements(self) -> float | None:
        """The fixed time of an execution, as the number of elements that take as long; infinite if elements take no
        time; None if it is not known yet."""
        spread = self._weight * self._squares - self._elements * self._elements
        if self._num < KNOWN or spread <= 1e-6 * self._weight * self._squares:
            return None
        per_element = (self._weight * self._products - self._elements * self._ns) / spread
        if per_element <= 0:
            return float("inf")
        return max(0.0, (self._ns - per_element * self._elements) / self._weight / per_element)


class _Forming:
    """The batch that is being formed: its requests, and what they are padded to."""

    def __init__(self, scheduler: "LengthBatchScheduler", oldest: QueuedRequest, bucket: int) -> None:
        self._max_rows, self._max_elements = scheduler.max_rows, scheduler.lengths.max_elements
        self._is_packed = scheduler.lengths.strategy is Strategy.PACK
        self.requests = [oldest]
        self.rows = oldest.rows
        self.length = bucket
        self.real = oldest.shape_key if self._is_packed else oldest.rows * oldest.shape_key

    @property
    def is_full(self) -> bool:
        """Whether even the shortest request would not fit."""
        if self.rows >= self._max_rows:
            return True
        next_elements = self.real + 1 if self._is_packed else (self.rows + 1) * self.length
        return 0 < self._max_elements < next_elements

    @property
    def elements(self) -> int:
        """Elements that are executed, padding included."""
        return self.real if self._is_packed else self.rows * self.length

    def add(self, requests: Iterable[QueuedRequest], bucket: int) -> bool:
        """Add requests of one bucket, in their order, until one does not fit. Returns True if all were added."""
        for request in requests:
            rows, length = self.rows + request.rows, max(self.length, bucket)
            real = request.shape_key if self._is_packed else request.rows * request.shape_key
            elements = self.real + real if self._is_packed else rows * length
            if rows > self._max_rows or (self._max_elements and elements > self._max_elements):
                return False
            self.requests.append(request)
            self.rows, self.length, self.real = rows, length, self.real + real
        return True


class LengthBatchScheduler(QueueScheduler[RequestQueue]):
    """Batches of requests of different lengths. See `Scheduler` for the contract of each method."""

    def __init__(self, max_rows: int, lengths: Lengths, delay_ns: int, queue: RequestQueue) -> None:
        super().__init__(queue)
        self.max_rows = max(1, max_rows)
        self.lengths = lengths
        self._delay_ns = delay_ns
        # Changed by the methods. `_num_real` and `_num_elements` count the elements executed so far, without padding
        # and with it. Requests whose instance died are in `_again`, and run alone, before all others.
        self._again = list[QueuedRequest]()
        self._line = CostLine()
        self._running = dict[int, int]()  # elements of the execution that each instance was given last
        self._num_real = self._num_elements = 0
        self._account = account()

    @property
    def batch_rows(self) -> int:
        return self.max_rows

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._again)

    def oldest_ns(self) -> int:
        return self._again[0].arrival_ns if self._again else super().oldest_ns()

    def rows_before(self, request: QueuedRequest) -> int | None:
        return self._queue.rows // self.max_rows * self.max_rows

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        self._queue.add(request, len(self._again))

    def add_first(self, request: QueuedRequest) -> None:
        self._again.insert(0, request)

    def take(self, now_ns: int) -> Batch | None:
        if not self._instances.idle:
            return None
        if self._again:
            return self._begin(self._forming(self._again.pop(0)), BatchReason.RUN_AGAIN)
        if not self._queue.rows:
            return None
        oldest = next(iter(self._queue))
        if oldest.shape_key >= ALONE_KEY:
            self._queue.popleft()
            return self._begin(_Forming(self, oldest, 0), BatchReason.ALONE)
        groups, is_followed_by_alone = self._groups()
        forming, reason = self._form(oldest, groups)
        can_wait = reason is not BatchReason.FULL and not is_followed_by_alone
        if can_wait and now_ns < oldest.arrival_ns + self._delay_ns:
            return None
        for request in forming.requests:
            self._queue.cancel(request.key)
        if reason is BatchReason.INSTANCE_IDLE and self._delay_ns:
            reason = BatchReason.DELAY_OVER
        return self._begin(forming, reason)

    def cancel(self, key: int) -> bool:
        if self._queue.cancel(key):
            return True
        for index, request in enumerate(self._again):
            if request.key == key:
                del self._again[index]
                return True
        return False

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        elements = self._running.pop(instance, 0)
        if elements:
            self._line.learn(elements, compute_ns)
        self._instances.complete(instance, now_ns, compute_ns)

    def next_deadline_ns(self) -> int | None:
        # Without an idle instance the delay has no effect: take() follows the event that makes one idle.
        if self._delay_ns and self._queue.rows and self._instances.idle:
            return self._queue.oldest_arrival_ns() + self._delay_ns
        return None

    def remove_instance(self, instance: int) -> None:
        self._running.pop(instance, None)
        self._instances.remove(instance)

    def drain(self) -> list[QueuedRequest]:
        requests = self._again + self._queue.drain()
        self._again = []
        return requests

    def explain(self) -> dict[str, Any]:
        fixed = self._line.fixed_elements()
        padding = self._num_elements - self._num_real
        return {
            "scheduler": "lengths",
            "strategy": self.lengths.strategy.value,
            "padding_share": padding / self._num_elements if self._num_elements else 0.0,
            # msgpack and JSON have no infinity that all readers take: -1 for elements that take no time
            "fixed_elements": None if fixed is None else -1.0 if fixed == float("inf") else fixed,
            **summary(self._account),
        }

    def _forming(self, request: QueuedRequest) -> _Forming:
        is_alone = request.shape_key >= ALONE_KEY
        return _Forming(self, request, 0 if is_alone else self.lengths.padded(request.shape_key))

    def _groups(self) -> tuple[dict[int, list[QueuedRequest]], bool]:
        """The requests behind the oldest by bucket (0: packed), and whether one of them runs alone. Such a request must
        not be delayed, so the batch in front of it does not wait."""
        groups: dict[int, list[QueuedRequest]] = {}
        padded, is_packed, has_alone = self.lengths.padded, self.lengths.strategy is Strategy.PACK, False
        for request in islice(self._queue, 1, LOOK_AHEAD * self.max_rows):
            if request.shape_key < ALONE_KEY:
                groups.setdefault(0 if is_packed else padded(request.shape_key), []).append(request)
            else:
                has_alone = True
        return groups, has_alone

    def _form(self, oldest: QueuedRequest, groups: dict[int, list[QueuedRequest]]) -> tuple[_Forming, BatchReason]:
        """The next batch, and why it has no more requests. Groups that are in the batch whole are removed from
        `groups`."""
        is_packed = self.lengths.strategy is Strategy.PACK
        forming = self._forming(oldest)
        own = 0 if is_packed else forming.length
        if not forming.add(groups.pop(own, ()), own):
            return forming, BatchReason.FULL
        if self.lengths.strategy is Strategy.PAD:
            self._join(forming, groups)
        if forming.is_full:
            return forming, BatchReason.FULL
        return forming, BatchReason.PADDING if groups else BatchReason.INSTANCE_IDLE

    def _join(self, forming: _Forming, groups: dict[int, list[QueuedRequest]]) -> None:
        """Move groups of other lengths into the batch, longer ones first, as far as the padding pays. Of a group that
        does not fit whole, the first requests join, and the group stays in `groups`."""
        own = forming.length
        longer = sorted(length for length in groups if length > own)
        shorter = sorted((length for length in groups if length < own), reverse=True)
        fixed = self._line.fixed_elements()
        for length in (*longer, *shorter):
            if forming.is_full:
                return
            if length > forming.length:
                added = forming.rows * (length - forming.length)
            else:
                added = sum([request.rows for request in groups[length]]) * (forming.length - length)
            # Before the time of an execution is known, and for a batch larger than any so far: at most half of what is
            # executed is padding.
            most = forming.real if fixed is None else min(fixed, max(forming.real, self._line.largest))
            if added <= most and forming.add(groups[length], length):
                del groups[length]

    def _begin(self, forming: _Forming, reason: BatchReason) -> Batch:
        instance = self._instances.take()
        if forming.length:
            self._running[instance] = forming.elements
            self._num_real += forming.real
            self._num_elements += forming.elements
        self._account.append(noted(forming.rows, reason))
        return make_batch((instance, tuple(forming.requests), forming.rows))
