"""The dynamic batcher: joins queued requests of one model into payloads, exactly when and as Triton's does.

Requests wait in the queue; payloads, formed from its head, wait for an instance. The last payload is *open* until it
is saturated or an instance takes it: later requests still join it. The numbers in the code are the rules of Triton's
dynamic batcher at one wake-up:

    1  requests that were cancelled do not count (the queue drops them at once)
    2  walk the queue: the *best* prefix is the longest one of a preferred size; stop where the batch cannot grow
    3  the delay is exceeded once the oldest pending request has waited max_queue_delay_microseconds
    4  a best prefix, delay not exceeded: exactly that goes now
    5  nothing pending: done
    6  the batch cannot grow, or has the largest preferred size: all pending go
    7  delay exceeded, or none configured: all pending go
    8  the open payload has no preferred size: all pending join it, so that an instance takes all that wait
    9  else sleep until the delay is exceeded or enough has arrived

Rules: nothing survives a wake-up but the queue, the payloads and when to wake next; the queue's order of service is
never rearranged to find requests that fit. Pure policy, runs in the batcher.
"""

from bisect import bisect_right
from collections import deque
from typing import Any

from shoal.batcher.scheduling.batch_account import REASON_BITS, BatchReason, account, noted, summary
from shoal.batcher.scheduling.payload import Batch, Payload, make_batch
from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.queue_scheduler import Queue, QueueScheduler
from shoal.deterministic import ALONE_KEY

#: Reasons as plain ints, which cost less than members of an enum.
_IDLE, _FULL, _PREFERRED = int(BatchReason.INSTANCE_IDLE), int(BatchReason.FULL), int(BatchReason.PREFERRED_SIZE)
_DELAY, _SHAPE = int(BatchReason.DELAY_OVER), int(BatchReason.SHAPES_DIFFER)
_ALONE = int(BatchReason.ALONE)
_ONE = noted(1, _IDLE)


class DynamicBatchScheduler(QueueScheduler[Queue]):
    """Triton's dynamic batching. See `Scheduler` for the contract of each method."""

    __slots__ = (
        "_delay_ns",
        "_max_preferred_rows",
        "_max_rows",
        "_num_in_payloads",
        "_open",
        "_payloads",
        "_preferred_rows",
        "_prefetching",
        "_wake_rows",
        "_wake_shape_key",
        "account",
    )

    def __init__(
        self,
        max_batch_size: int,
        preferred_batch_sizes: tuple[int, ...],
        max_queue_delay_ns: int,
        queue: Queue,
        *,
        prefetching: bool = False,
    ) -> None:
        """With `prefetching`, payloads may be formed ahead, two per instance; otherwise only for an idle instance."""
        super().__init__(queue)
        self._max_rows = max(1, max_batch_size)
        self._preferred_rows = tuple(sorted(preferred_batch_sizes))
        self._max_preferred_rows = max(preferred_batch_sizes, default=0)
        self._delay_ns = max_queue_delay_ns
        self._prefetching = prefetching
        # Changed by take and cancel: the payloads that wait for an instance, the oldest first, and the number of
        # requests in them.
        self._payloads: deque[Payload] = deque()
        self._num_in_payloads = 0
        #: The last payload while requests may still join it; None if there is none.
        self._open: Payload | None = None
        # The sleep of rule 9: until so many rows are queued, or a request of another shape is. 0 = awake.
        self._wake_rows = 0
        self._wake_shape_key = 0
        #: The reasons for batches' sizes (batch_account.py).
        self.account = account()

    @property
    def batch_rows(self) -> int:
        return self._max_rows

    @property
    def pending(self) -> int:
        return len(self._queue) + self._num_in_payloads

    def oldest_ns(self) -> int:
        if self._payloads:
            # Also right where requests overtake each other (PolicyBatchScheduler): there only requests whose instance
            # has died wait in payloads, and they are the oldest.
            return self._payloads[0].requests[0].arrival_ns
        return self._queue.oldest_arrival_ns() if self._queue.rows else 0

    def rows_before(self, request: QueuedRequest) -> int:
        return self._full_batches(self._queue.rows)

    def _full_batches(self, queued_rows: int) -> int:
        """The rows of all full batches that queue and payloads make up; when the remaining rows run depends on later
        arrivals."""
        size = self._max_preferred_rows or self._max_rows
        return (queued_rows + sum([payload.rows for payload in self._payloads])) // size * size

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        self._queue.add(request, self._num_in_payloads)
        if request.shape_key != self._wake_shape_key:
            self._wake_rows = 0

    def add_first(self, request: QueuedRequest) -> None:
        payload = Payload(request.shape_key)
        payload.requests.append(request)
        payload.rows = request.rows
        payload.saturated = True
        payload.reason = int(BatchReason.RUN_AGAIN)
        self._payloads.appendleft(payload)
        self._num_in_payloads += 1

    def take(self, now_ns: int) -> Batch | None:
        queue = self._queue
        idle = self._instances.idle
        if queue.rows == 1 and idle and not self._payloads and not self._delay_ns:
            # The shortest path on an idle server: rules 4, 6 and 7 all send a single request at once.
            self.account.append(_ONE)
            return make_batch((self._instances.take(), (queue.popleft(),), 1))
        if queue.rows and (queue.rows >= self._wake_rows or now_ns >= queue.oldest_arrival_ns() + self._delay_ns):
            while queue.rows and self._has_slot() and self._form(now_ns):
                pass
        if not idle or not self._payloads:
            return None
        payload = self._pick_up(now_ns)
        self._num_in_payloads -= len(payload.requests)
        self.account.append(payload.rows << REASON_BITS | payload.reason)
        return make_batch((self._instances.take(), tuple(payload.requests), payload.rows))

    def cancel(self, key: int) -> bool:
        if self._queue.cancel(key):
            self._wake_rows = 0  # the remaining requests may need fewer rows
            return True
        for payload in self._payloads:
            if payload.cancel(key):
                self._num_in_payloads -= 1
                self._wake_rows = 0
                if not payload.requests:
                    self._remove(payload)
                return True
        return False

    def next_deadline_ns(self) -> int | None:
        # While no payload may be formed, the delay has no effect: take() follows the event that makes room for one.
        if self._queue.rows and self._has_slot():
            return self._queue.oldest_arrival_ns() + self._delay_ns
        return None

    def drain(self) -> list[QueuedRequest]:
        requests = [request for payload in self._payloads for request in payload.requests]
        requests += self._queue.drain()
        self._payloads.clear()
        self._num_in_payloads = 0
        self._open = None
        self._wake_rows = 0
        return requests

    def explain(self) -> dict[str, Any]:
        return {"scheduler": "dynamic", **summary(self.account)}

    def _has_slot(self) -> bool:
        """Whether the batcher may form payloads; while it may not, the open payload does not grow either."""
        slots = 2 * len(self._instances) if self._prefetching else len(self._instances.idle)
        return len(self._payloads) < slots

    def _form(self, now_ns: int) -> bool:
        """Do one wake-up of the batcher, with a queue that is not empty. Returns True if requests have moved into a
        payload; otherwise the batcher sleeps."""
        payload = self._open
        payload_rows, shape_key = (0, 0) if payload is None else (payload.rows, payload.shape_key)
        num_pending = pending_rows = num_best = 0
        saturated = shape_differs = send_now = False
        oldest_ns = now_ns
        for request in self._queue:  # 2
            batch_rows = payload_rows + pending_rows + request.rows
            if batch_rows == request.rows:
                shape_key = request.shape_key
            else:
                if batch_rows > self._max_preferred_rows and num_best == 0:
                    num_best = num_pending
                    saturated = True
                if batch_rows > self._max_rows:
                    send_now = True
                    break
                if request.shape_key != shape_key:
                    saturated = shape_differs = send_now = True
                    break
            num_pending += 1  # noqa: SIM113  counts only what fits
            pending_rows += request.rows
            if request.arrival_ns < oldest_ns:
                oldest_ns = request.arrival_ns
            if batch_rows in self._preferred_rows:
                num_best = num_pending
        batch_rows = payload_rows + pending_rows
        is_alone = shape_key >= ALONE_KEY  # no other request has this key, so waiting for one is useless

        is_delayed = self._delay_ns > 0
        is_exceeded = is_delayed and now_ns - oldest_ns >= self._delay_ns  # 3
        reason = _DELAY if is_exceeded else _IDLE
        if num_best and not is_exceeded:  # 4
            num_pending = num_best
            saturated = saturated or not is_delayed
            reason = _PREFERRED
        elif num_pending == 0 or send_now or is_alone or batch_rows >= self._max_preferred_rows:  # 5, 6
            saturated = True
            reason = _SHAPE if shape_differs else _FULL if send_now or batch_rows >= self._max_rows else _PREFERRED
            reason = _ALONE if is_alone else reason
        elif is_delayed and not is_exceeded and (payload_rows == 0 or payload_rows in self._preferred_rows):  # not 7, 8
            self._wake_rows = self._preferred_rows[bisect_right(self._preferred_rows, batch_rows)] - payload_rows  # 9
            self._wake_shape_key = shape_key
            return False
        self._dispatch(num_pending, shape_key, saturated, shape_differs, reason)
        return True

    def _dispatch(self, num_pending: int, shape_key: int, saturated: bool, shape_differs: bool, reason: int) -> None:
        """Move the first `num_pending` requests into the open payload, or into a new one; close a saturated one."""
        payload = self._open
        if payload is None:
            payload = Payload(shape_key)
            self._payloads.append(payload)
        popleft = self._queue.popleft
        for _ in range(num_pending):
            request = popleft()
            payload.requests.append(request)
            payload.rows += request.rows
        payload.saturated = shape_differs
        payload.reason = _FULL if payload.rows >= self._max_rows else reason
        self._num_in_payloads += num_pending
        self._open = None if saturated else payload
        self._wake_rows = 0

    def _pick_up(self, now_ns: int) -> Payload:
        """The first payload, for an idle instance.

        With a delay configured, the payloads behind the first that have been waiting for longer than the delay are
        merged into it, as Triton's instance does: up to max_batch_size, as long as all have one shape.
        """
        payload = self._payloads[0]
        self._remove(payload)
        while self._delay_ns and self._payloads and not payload.saturated:
            behind = self._payloads[0]
            if (
                behind.saturated
                or behind.shape_key != payload.shape_key
                or now_ns - behind.requests[0].arrival_ns <= self._delay_ns
                or payload.rows + behind.rows > self._max_rows
            ):
                break
            self._remove(behind)
            payload.merge(behind)
        return payload

    def _remove(self, payload: Payload) -> None:
        """Remove a payload from the waiting ones; no request can join it any more."""
        self._payloads.remove(payload)
        if payload is self._open:
            self._open = None
            self._wake_rows = 0


class PolicyBatchScheduler(DynamicBatchScheduler[PolicyQueue]):
    """Dynamic batching with a queue in which requests expire and overtake each other: they stay in the queue until they
    run.

    The class is separate from DynamicBatchScheduler, so that models without such a policy do not pay for it.
    """

    __slots__ = ()

    @property
    def rejects(self) -> bool:
        return self._queue.rejects

    def expiry_ns(self, request: QueuedRequest) -> int:
        return self._queue.expiry_ns(request)

    def rows_before(self, request: QueuedRequest) -> int:
        return self._full_batches(self._queue.rows_before(request))

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        super().add(request, now_ns)
        self._wake_rows = 0  # the new request may come first, and fill a preferred size with fewer rows

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        expiry_ns = self._queue.next_expiry_ns()
        if expiry_ns is None or expiry_ns > now_ns:
            return []
        self._wake_rows = 0  # the remaining requests may need fewer rows, or come in another order
        return self._queue.expire(now_ns)

    def next_deadline_ns(self) -> int | None:
        return earlier(super().next_deadline_ns(), self._queue.next_expiry_ns())


def earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    """The earlier of two times; None is never."""
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(one_ns, other_ns)
