"""Batching by a latency target: the model says how long an answer may take; sizes and delays follow from measurements.

Two questions arise each time an instance is idle and requests wait:

How many rows? The number that is fastest per row (`LatencyCurve`), if the oldest request of the batch is then answered
within the target. Otherwise the number that answers the most requests in time per second, of the numbers that keep up
with the arrivals: smaller batches would answer a few requests in time, and make all later ones late.

Now, or later? Later only if a delay shortens the total wait of all requests concerned. A delay lengthens the wait of
queued requests, by itself and by the longer execution of a larger batch; it spares requests that are expected meanwhile
(`ArrivalProfile`) the wait until the instance is idle again. A delay does not pay with random arrivals; it pays with
bursts, and with clients that send the next request when they have an answer. A batch never waits so long that the
target would be missed.

If latency grows in proportion to rows, one request at a time is best, and batching turns itself off. Rules:
those of the dynamic batcher, with the same queue and instances. Pure policy, runs in the batcher.
"""

from typing import Any

from shoal.batcher.scheduling.arrival_profile import ArrivalProfile, ArrivalRate
from shoal.batcher.scheduling.batch_account import BatchReason, noted
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, earlier
from shoal.batcher.scheduling.latency_curve import LatencyCurve
from shoal.batcher.scheduling.payload import Batch, make_batch
from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.queue_scheduler import Queue
from shoal.deterministic import ALONE_KEY

#: The least share of all requests' wait that a delay must save (ours): expected requests may not come.
_GAIN = 0.05
#: The share of the target reserved for times that are not measured: the reply's way to the client, and executions
#: slower than usual (ours).
_RESERVE = 0.1
#: The time in ns within which a backlog should be worked off (simulated: with half a second, a growing load is noticed
#: too late; the latency target in place of this time would be too strict if the target is short and requests come in
#: bursts).
_BACKLOG_NS = 250_000_000
#: Arrivals are assumed to be at most this share of a model's capacity (ours).
_MAX_LOAD = 0.95
#: The value of a late answer, as a share of that of an answer in time (ours). It is above 0, so that under overload,
#: when all answers are late, as many as possible are given.
_LATE = 0.1


class Goal:
    """The measurements of one model, and the two decisions. Times are in ns."""

    __slots__ = (
        "_after_batch", "_after_first", "_begun", "_is_after_batch", "_rate", "_target_ns", "awaited_rows", "curve",
        "max_rows", "num_instances", "target_ms",
    )  # fmt: skip

    def __init__(self, target_ns: int, max_rows: int) -> None:
        self.target_ms = target_ns // 1_000_000
        self._target_ns = target_ns * (1 - _RESERVE)
        self.max_rows = max_rows
        self.curve = LatencyCurve(max_rows)
        # Changed by the methods below. Arrivals after an arrival that found the queue empty; arrivals after a batch
        # that left requests queued, and whether the last event was such a batch; instance → rows and start of its
        # execution.
        self._after_first = ArrivalProfile()
        self._after_batch = ArrivalProfile()
        self._is_after_batch = False
        self._rate = ArrivalRate()
        self._begun: dict[int, tuple[int, int]] = {}
        self.num_instances = 0
        #: Set by `wait_ns`: the number of rows that are expected to be there when the wait ends.
        self.awaited_rows = 0

    @property
    def arrivals_per_s(self) -> float:
        """Rows that arrive per second."""
        return self._rate.per_ns * 1e9

    def arrives(self, rows: int, now_ns: int, *, finds_queued: bool, finds_idle: bool) -> None:
        """Note that a request of `rows` rows arrives. `finds_queued`: other requests are queued; `finds_idle`: an
        instance is idle."""
        self._rate.add(rows, now_ns)
        if finds_queued or now_ns < self._after_first.begun_ns + self.curve.ns(1):
            self._after_first.add(rows, now_ns)  # part of the burst, though a batch may have begun since the burst did
        else:
            self._after_first.begin(now_ns)
        if self._is_after_batch:
            self._after_batch.add(rows, now_ns)
            self._is_after_batch = finds_queued or not finds_idle

    def begins(self, instance: int, rows: int, now_ns: int) -> None:
        """Note that an instance has been given a batch."""
        self._begun[instance] = rows, now_ns

    def ends(self, instance: int, now_ns: int, *, finds_queued: bool) -> None:
        """Note that an instance has executed its batch; with `finds_queued`, requests are queued for its next batch.

        The execution is timed from when the batch was given to the instance until now, transfers included.
        """
        begun = self._begun.pop(instance, None)
        if begun is not None:
            self.curve.learn(begun[0], now_ns - begun[1])
        if finds_queued:
            self._is_after_batch = True
            self._after_batch.begin(now_ns)

    def forget(self, instance: int) -> None:
        self._begun.pop(instance, None)

    def rows_now(
        self, requests: list[QueuedRequest], rows: int, queued_rows: int, now_ns: int, *, is_full: bool
    ) -> tuple[int, BatchReason]:
        """How many of the rows of `requests` should be executed together, at least 1, and why not more.

        `is_full`: at least as many rows wait as fit into a batch.
        """
        wanted = self._rows_that_pay(rows, queued_rows, is_full=is_full)
        left_ns = self._target_ns - (now_ns - requests[0].arrival_ns)
        if wanted == 1 or self.curve.ns(wanted) <= left_ns:
            return wanted, BatchReason.NO_GAIN
        best, most = wanted, 0.0
        together = num_late = late = 0
        for request in requests:
            together += request.rows
            if together > wanted and most:
                break
            if not self._keeps_up(together, queued_rows):
                continue
            took_ns = self.curve.ns(together)
            latest_ns = now_ns + took_ns - self._target_ns  # requests that arrived earlier are answered too late
            while late < together and requests[num_late].arrival_ns < latest_ns:
                late += requests[num_late].rows
                num_late += 1
            value = (together - late + _LATE * late) / max(1.0, took_ns)
            if value > most:
                best, most = together, value
        return best, BatchReason.LATENCY_TARGET if best < wanted else BatchReason.NO_GAIN

    def _rows_that_pay(self, rows: int, queued_rows: int, *, is_full: bool) -> int:
        """How many of `rows` should be executed together, regardless of the latency target. `is_full`: at least as many
        rows wait as fit into one batch."""
        wanted, most = self.curve.best_rows(rows, any_gain=is_full), min(rows, self.curve.most_rows)
        if is_full or not 1 < wanted < most:
            return wanted
        if not self._pays_to_split(rows, wanted):
            return most
        return wanted if self._keeps_up(wanted, queued_rows) else self.curve.best_rows(rows, any_gain=True)

    def wait_ns(self, rows: int, oldest_ns: int, now_ns: int) -> int:
        """How long (ns) the queued `rows` should wait for further ones; 0: not at all. Also sets `awaited_rows`."""
        curve = self.curve
        alone_ns = curve.ns(rows)
        left_ns = self._target_ns - (now_ns - oldest_ns)
        room = min(self.max_rows, curve.most_rows) - rows
        if room <= 0 or alone_ns >= left_ns:
            return 0
        next_ns = alone_ns / max(1, self.num_instances)  # until the next instance is idle
        best_ns, most = 0.0, 0.0
        for profile in (self._after_first, self._after_batch) if self._is_after_batch else (self._after_first,):
            expected = list(profile.expected(now_ns, next_ns))
            _, later, moments = expected[-1] if expected else (0.0, 0.0, 0.0)
            if later < 0.5:
                continue
            # The total wait if the batch begins now. Requests that come during its execution run together after it, and
            # delay further requests (`beyond`) until the queue is empty.
            beyond = later * self._congestion(rows)
            now = self._cost(rows, alone_ns, later, 0.0, moments / later, beyond)
            for wait_ns, others, moment in expected:
                together = rows + min(room, others)
                took_ns = curve.ns(round(together))
                if wait_ns + took_ns > left_ns:
                    break
                rest = max(0.0, later - others)
                middle_ns = (moments - moment) / rest if rest else 0.0
                saved = now - self._cost(together, took_ns, rest, wait_ns, middle_ns, beyond) + moment
                if saved > most and saved > _GAIN * now:
                    best_ns, most = wait_ns, saved
                    self.awaited_rows = max(1, round(together))
        return int(best_ns)

    def _keeps_up(self, rows: int, queued_rows: int) -> bool:
        """Whether batches of `rows` rows are executed as fast as rows arrive, and reduce a backlog."""
        per_ns = self._rate.per_ns + (queued_rows - rows) / _BACKLOG_NS
        return rows * self.num_instances >= per_ns * self.curve.ns(rows)

    def _pays_to_split(self, rows: int, first: int) -> bool:
        """Whether the total wait is shorter if only `first` of the `rows` are executed now, and the rest with the next
        batch."""
        all_ns, first_ns = self.curve.ns(rows), self.curve.ns(first)
        later = self._rate.per_ns * all_ns / max(1, self.num_instances)
        beyond = later * self._congestion(rows)
        whole = self._cost(rows, all_ns, later, 0.0, all_ns / 2, beyond)
        rest = rows - first + later
        return self._cost(first, first_ns, rest, 0.0, later * all_ns / 2 / rest, beyond) < (1 - _GAIN) * whole

    def _cost(
        self, rows: float, took_ns: float, later: float, wait_ns: float, middle_ns: float, beyond: float
    ) -> float:
        """The total wait (rows x ns) from now on: of `rows` rows in a batch that begins after `wait_ns` and takes
        `took_ns`; of `later` rows that come about `middle_ns` from now, too late for that batch, and run after it, with
        double weight if they miss the target; and of `beyond` rows after those."""
        next_ns = wait_ns + took_ns / max(1, self.num_instances)
        after_ns = next_ns + (self.curve.ns(min(self.max_rows, max(1, round(later)))) if later else 0.0)
        late_ns = self._target_ns if after_ns - middle_ns > self._target_ns else 0.0
        return rows * (wait_ns + took_ns) + later * (after_ns - middle_ns + late_ns) + beyond * after_ns

    def _congestion(self, rows: int) -> float:
        """For each row that arrives during an execution, the number of further rows that have to wait for it. A row
        makes the next batch longer, and so more rows arrive during that batch, until the queue is empty. The time that
        a row adds to a batch is the slope of the curve or, if batches are full, the time per row of a full batch.
        """
        curve = self.curve
        more = min(2 * rows, curve.most_rows)
        row_ns = (curve.ns(more) - curve.ns(rows)) / (more - rows) if more > rows else curve.ns(rows) / rows
        load = min(_MAX_LOAD, self._rate.per_ns * row_ns / max(1, self.num_instances))
        return load / (1 - load)


class GoalBatchScheduler(DynamicBatchScheduler[Queue]):
    """Batching by a latency target: the dynamic batcher with two decisions in place of its nine rules. See `Scheduler`
    for the contract of each method.
    """

    __slots__ = ("_wake_ns", "goal")

    def __init__(self, max_batch_size: int, target_ns: int, queue: Queue) -> None:
        super().__init__(max_batch_size, (), 0, queue)
        self.goal = Goal(target_ns, max(1, max_batch_size))
        #: The queue waits until this time (monotonic ns), or until `_wake_rows` rows are queued.
        self._wake_ns = 0

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        finds_queued = bool(self._queue.rows)
        super().add(request, now_ns)
        self.goal.arrives(request.rows, now_ns, finds_queued=finds_queued, finds_idle=bool(self._instances.idle))

    def take(self, now_ns: int) -> Batch | None:
        if not self._instances.idle:
            return None
        if self._payloads:
            again = self._payloads.popleft()
            self._num_in_payloads -= 1
            return self._begin(again.requests, again.rows, BatchReason.RUN_AGAIN, now_ns)
        if not self._queue.rows or (self._queue.rows < self._wake_rows and now_ns < self._wake_ns):
            return None
        requests, rows, reason = self._fitting()
        is_full = reason == BatchReason.FULL
        wanted, limit = self.goal.rows_now(requests, rows, self._queue.rows, now_ns, is_full=is_full)
        if wanted < rows:
            reason = limit
        elif requests[0].shape_key >= ALONE_KEY:  # no other request has this key, so none can be waited for
            reason = BatchReason.ALONE
        elif reason == BatchReason.INSTANCE_IDLE and len(self._instances.idle) == 1:
            wait_ns = self.goal.wait_ns(rows, self._queue.oldest_arrival_ns(), now_ns)
            if wait_ns:
                self._wake_ns, self._wake_rows = now_ns + wait_ns, self.goal.awaited_rows
                self._wake_shape_key = requests[0].shape_key
                return None
            if self._wake_rows:
                reason = BatchReason.EXPECTED_ARRIVED if rows >= self._wake_rows else BatchReason.EXPECTED_MISSING
        self._wake_rows = 0
        taken = [self._queue.popleft()]
        rows = taken[0].rows
        while len(taken) < len(requests) and rows + requests[len(taken)].rows <= wanted:
            rows += requests[len(taken)].rows
            taken.append(self._queue.popleft())
        return self._begin(taken, rows, reason, now_ns)

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        super().complete(instance, now_ns, compute_ns)
        self.goal.ends(instance, now_ns, finds_queued=bool(self._queue.rows))

    def next_deadline_ns(self) -> int | None:
        # Without an idle instance nothing is due: take() follows the event that makes one idle.
        return self._wake_ns if self._wake_rows and self._queue.rows and self._instances.idle else None

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        super().add_instance(instance, num_running)
        self.goal.num_instances = len(self._instances)

    def remove_instance(self, instance: int) -> None:
        super().remove_instance(instance)
        self.goal.forget(instance)
        self.goal.num_instances = len(self._instances)

    def explain(self) -> dict[str, Any]:
        goal = self.goal
        return {
            **super().explain(),
            "scheduler": "goal",
            "latency_target_ms": goal.target_ms,
            "arrivals_per_s": round(goal.arrivals_per_s, 1),
            "learned": [{"rows": rows, "ns": ns, "samples": samples} for rows, ns, samples in goal.curve.points()],
        }

    def _fitting(self) -> tuple[list[QueuedRequest], int, BatchReason]:
        """The first requests of the queue that fit into one batch, at least one; their rows; and the limit that ends
        them."""
        requests: list[QueuedRequest] = []
        rows = 0
        for request in self._queue:
            if requests and request.shape_key != requests[0].shape_key:
                return requests, rows, BatchReason.SHAPES_DIFFER
            if requests and rows + request.rows > self.goal.max_rows:
                return requests, rows, BatchReason.FULL
            requests.append(request)
            rows += request.rows
        return requests, rows, BatchReason.FULL if rows >= self.goal.max_rows else BatchReason.INSTANCE_IDLE

    def _begin(self, requests: list[QueuedRequest], rows: int, reason: int, now_ns: int) -> Batch:
        instance = self._instances.take()
        self.goal.begins(instance, rows, now_ns)
        self.account.append(noted(rows, reason))
        return make_batch((instance, tuple(requests), rows))


class GoalPolicyScheduler(GoalBatchScheduler[PolicyQueue]):
    """Batching by a latency target with priorities and timeouts: the decisions are made anew when requests expire, or
    overtake others.

    Its methods are those of PolicyBatchScheduler: a class that is compiled inherits from one other class.
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
        self._wake_rows = 0

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        expiry_ns = self._queue.next_expiry_ns()
        if expiry_ns is None or expiry_ns > now_ns:
            return []
        self._wake_rows = 0
        return self._queue.expire(now_ns)

    def next_deadline_ns(self) -> int | None:
        return earlier(super().next_deadline_ns(), self._queue.next_expiry_ns())
