"""What holds for every scheduler and every schedule: generated configurations, arrivals, completions and clocks.

The dynamic batcher is also compared, batch by batch, with a slow model that walks its rules from scratch each time.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler
from shoal.batcher.scheduling.scheduler import Batch, QueuedRequest, Scheduler, from_config
from shoal.errors import UnavailableError

DELAY_US = 5
DELAY_NS = 5000


def test_dynamic_batching_in_the_configuration_chooses_the_dynamic_batcher() -> None:
    # An empty message is meaningful: it turns merging on.
    assert isinstance(from_config({"max_batch_size": 4, "dynamic_batching": {}}, 10), DynamicBatchScheduler)
    assert isinstance(from_config({"max_batch_size": 4}, 10), DefaultScheduler)


@dataclass(frozen=True)
class Settings:
    """What a generated model configuration says."""

    is_dynamic: bool
    max_batch_size: int
    preferred: tuple[int, ...]
    delay_us: int
    max_queue_size: int
    max_total_queue: int

    @property
    def max_rows(self) -> int:
        return max(1, self.max_batch_size)

    @property
    def delay_ns(self) -> int:
        return self.delay_us * 1000 if self.is_dynamic else 0

    def scheduler(self) -> Scheduler:
        config: dict[str, Any] = {"max_batch_size": self.max_batch_size}
        if self.is_dynamic:
            config["dynamic_batching"] = {
                "preferred_batch_size": list(self.preferred),
                "max_queue_delay_microseconds": self.delay_us,
                "default_queue_policy": {"max_queue_size": self.max_queue_size},
            }
        return from_config(config, self.max_total_queue)


@dataclass
class SlowPayload:
    requests: list[QueuedRequest] = field(default_factory=list)
    can_grow: bool = True
    can_merge: bool = True

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.requests)


@dataclass
class SlowModel:
    """The dynamic batcher in lists, with no memory of earlier wake-ups and no short cut."""

    settings: Settings
    queue: list[QueuedRequest] = field(default_factory=list)
    payloads: list[SlowPayload] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)

    def cancel(self, key: int) -> None:
        for requests in (self.queue, *(payload.requests for payload in self.payloads)):
            requests[:] = [request for request in requests if request.key != key]
        self.payloads = [payload for payload in self.payloads if payload.requests]

    def has_slot(self) -> bool:
        if self.settings.max_queue_size:
            return len(self.payloads) < len(self.idle)
        return len(self.payloads) < 2 * (len(self.idle) + len(self.busy))

    def take(self, now_ns: int) -> Batch | None:
        while self.queue and self.has_slot() and self.wake_up(now_ns):
            pass
        if not self.idle or not self.payloads:
            return None
        first = self.payloads.pop(0)
        while self.settings.delay_ns and self.payloads and self.merges(first, self.payloads[0], now_ns):
            first.requests += self.payloads.pop(0).requests
        self.busy.append(self.idle.pop(0))
        return Batch(self.busy[-1], tuple(first.requests), first.rows)

    def merges(self, first: SlowPayload, second: SlowPayload, now_ns: int) -> bool:
        return (
            first.can_merge
            and second.can_merge
            and first.requests[0].shape_key == second.requests[0].shape_key
            and now_ns > second.requests[0].arrival_ns + self.settings.delay_ns
            and first.rows + second.rows <= self.settings.max_rows
        )

    def wake_up(self, now_ns: int) -> bool:
        delay_ns, max_rows = self.settings.delay_ns, self.settings.max_rows
        preferred = set(self.settings.preferred or (self.settings.max_batch_size,)) - {0}
        largest = max(preferred, default=0)
        is_new = not self.payloads or not self.payloads[-1].can_grow
        payload = SlowPayload() if is_new else self.payloads[-1]
        pending: list[QueuedRequest] = []
        best: list[QueuedRequest] = []
        send_now = False
        for request in self.queue:
            batch = [*payload.requests, *pending]
            rows = sum(each.rows for each in batch) + request.rows
            if batch:
                if rows > largest and not best:
                    best = list(pending)
                    payload.can_grow = False
                if rows > max_rows:
                    send_now = True
                    break
                if request.shape_key != batch[0].shape_key:
                    payload.can_grow = payload.can_merge = False
                    send_now = True
                    break
            pending.append(request)
            if rows in preferred:
                best = list(pending)
        rows = payload.rows + sum(request.rows for request in pending)
        is_exceeded = delay_ns > 0 and any(now_ns >= request.arrival_ns + delay_ns for request in pending)
        if best and not is_exceeded:
            payload.can_grow = payload.can_grow and delay_ns > 0
            pending = best
        elif not pending:
            payload.can_grow = False
            return True
        elif send_now or rows >= largest:
            payload.can_grow = False
        elif not is_exceeded and delay_ns > 0 and (is_new or payload.rows in preferred):
            return False
        payload.requests += pending
        del self.queue[: len(pending)]
        if is_new:
            self.payloads.append(payload)
        return True


class Schedule:
    """Drives a scheduler and its slow model through one schedule, checking after every step."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scheduler = settings.scheduler()
        self.model = SlowModel(settings) if settings.is_dynamic else None
        self.now_ns = 1000
        self.num_added = 0
        self.waiting: dict[int, QueuedRequest] = {}
        self.idle: list[int] = []
        self.busy: list[int] = []
        self.last_taken = -1

    def add(self, rows: int, shape_key: int) -> None:
        request = QueuedRequest(self.num_added, min(rows, self.settings.max_rows), shape_key, self.now_ns)
        self.num_added += 1
        if self.is_full():
            event("refused")
            with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
                self.scheduler.add(request, self.now_ns)
            return
        self.scheduler.add(request, self.now_ns)
        self.waiting[request.key] = request
        if self.model:
            self.model.queue.append(request)

    def is_full(self) -> bool:
        is_queue_full = self.model is not None and 0 < self.settings.max_queue_size <= len(self.model.queue)
        return is_queue_full or len(self.waiting) >= self.settings.max_total_queue

    def cancel(self, index: int) -> None:
        if self.num_added:
            key = index % self.num_added
            assert self.scheduler.cancel(key) == (key in self.waiting)
            self.waiting.pop(key, None)
            if self.model:
                self.model.cancel(key)

    def add_instance(self, instance: int) -> None:
        self.scheduler.add_instance(instance)
        if instance not in self.idle + self.busy:
            self.idle.append(instance)
        self.tell_model()

    def remove_instance(self, instance: int) -> None:
        self.scheduler.remove_instance(instance)
        self.idle = [each for each in self.idle if each != instance]
        self.busy = [each for each in self.busy if each != instance]
        self.tell_model()

    def complete(self, instance: int) -> None:
        self.scheduler.complete(instance, self.now_ns, 10**9)
        if instance in self.busy:
            self.busy.remove(instance)
            if instance not in self.busy:
                self.idle.append(instance)
        self.tell_model()

    def tell_model(self) -> None:
        if self.model:
            self.model.idle, self.model.busy = list(self.idle), list(self.busy)

    def clock(self, step_ns: int) -> None:
        self.now_ns += step_ns

    def sleep(self) -> None:
        """As the batcher does: no longer than to the deadline."""
        deadline_ns = self.scheduler.next_deadline_ns()
        if deadline_ns is not None and deadline_ns > self.now_ns:
            event("slept")
            self.now_ns = deadline_ns
            self.settle()
            assert self.scheduler.next_deadline_ns() != deadline_ns

    def settle(self) -> None:
        while (batch := self.scheduler.take(self.now_ns)) is not None:
            self.check_batch(batch)
            if self.model:
                assert batch == self.model.take(self.now_ns)
            for request in batch.requests:
                del self.waiting[request.key]
            if self.idle:
                assert batch.instance == self.idle.pop(0)
            else:
                event("worked ahead")
                assert not self.settings.is_dynamic
                assert 0 < self.busy.count(batch.instance) < 8
            self.busy.append(batch.instance)
        if self.model:
            assert self.model.take(self.now_ns) is None
        self.check_rest()

    def check_batch(self, batch: Batch) -> None:
        requests = batch.requests
        event("batch of one" if len(requests) == 1 else "batch of several")
        assert batch.rows == sum(request.rows for request in requests)
        assert len(requests) == 1 or batch.rows <= self.settings.max_rows
        assert len(requests) == 1 or self.settings.is_dynamic
        assert len({request.shape_key for request in requests}) == 1
        keys = [request.key for request in requests]
        assert [self.last_taken, *keys] == sorted({self.last_taken, *keys})  # first come, first served
        assert all(self.waiting[request.key] is request for request in requests)
        self.last_taken = keys[-1]

    def check_rest(self) -> None:
        if self.idle:
            # Also says: without a delay nothing waits while an instance is idle.
            assert all(request.arrival_ns + self.settings.delay_ns > self.now_ns for request in self.waiting.values())
        deadline_ns = self.scheduler.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns
        if self.idle and self.waiting:
            assert deadline_ns == min(request.arrival_ns for request in self.waiting.values()) + self.settings.delay_ns

    def step(self, name: str, *arguments: int) -> None:
        getattr(self, name)(*arguments)
        assert self.scheduler.pending == len(self.waiting) <= self.settings.max_total_queue
        assert self.scheduler.oldest_ns() == min((request.arrival_ns for request in self.waiting.values()), default=0)
        assert self.scheduler.expire(self.now_ns) == []

    def finish(self) -> None:
        assert self.scheduler.drain() == list(self.waiting.values())
        assert self.scheduler.pending == self.scheduler.oldest_ns() == 0
        assert self.scheduler.take(self.now_ns) is None


INSTANCES = st.integers(0, 2)
ANY_SETTINGS = st.builds(
    Settings,
    is_dynamic=st.sampled_from([True, True, True, False]),
    max_batch_size=st.sampled_from([0, 1, 4, 8]),
    preferred=st.lists(st.integers(1, 8), max_size=2).map(tuple),
    delay_us=st.sampled_from([0, DELAY_US]),
    max_queue_size=st.sampled_from([0, 0, 4]),
    max_total_queue=st.sampled_from([5, 30]),
).map(lambda made: Settings(**{**made.__dict__, "preferred": tuple(p for p in made.preferred if p <= made.max_rows)}))
ARRIVAL = st.tuples(st.just("add"), st.sampled_from([1, 1, 1, 2, 3, 6]), st.sampled_from([0, 0, 0, 0, 1]))
SETTLE = st.just(("settle",))
STEP = st.one_of(
    *[ARRIVAL] * 6,
    *[SETTLE] * 2,
    st.tuples(st.just("complete"), INSTANCES),
    st.tuples(st.just("complete"), INSTANCES),
    st.tuples(st.just("clock"), st.sampled_from([1, 1000, DELAY_NS - 1, DELAY_NS, 3 * DELAY_NS])),
    st.just(("sleep",)),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("add_instance"), INSTANCES),
    st.tuples(st.just("remove_instance"), INSTANCES),
)


@settings(max_examples=300, deadline=None)
@given(ANY_SETTINGS, st.sampled_from([1, 2, 0]), st.lists(STEP, min_size=20, max_size=60))
def test_any_schedule_keeps_the_promises(model: Settings, num_instances: int, steps: list[tuple[Any, ...]]) -> None:
    schedule = Schedule(model)
    for instance in range(num_instances):
        schedule.add_instance(instance)
    for step in steps:
        schedule.step(*step)
    schedule.settle()
    schedule.finish()


@pytest.mark.parametrize("delay_us", [0, DELAY_US])
@pytest.mark.parametrize("max_queue_size", [0, 40])
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=40), shape_keys=st.lists(st.integers(0, 1), min_size=40))
def test_everything_runs_in_the_end(
    delay_us: int, max_queue_size: int, sizes: list[int], shape_keys: list[int]
) -> None:
    """An instance that completes and a batcher that sleeps to its deadline are enough; none is forgotten."""
    schedule = Schedule(Settings(True, 8, (), delay_us, max_queue_size, 40))
    schedule.add_instance(0)
    for rows, shape_key in zip(sizes, shape_keys, strict=False):
        schedule.step("add", rows, shape_key)
        schedule.step("settle")
    for _ in range(2 * len(sizes)):
        schedule.step("sleep")
        schedule.step("complete", 0)
        schedule.step("settle")
    assert schedule.waiting == {}
    assert schedule.last_taken == len(sizes) - 1
