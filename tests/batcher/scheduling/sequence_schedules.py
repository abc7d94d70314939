"""Schedules of a sequence batcher: driven through arrivals, cancellations, completions, deaths and time, every promise
checked on the way against a slow model that walks lists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from typing import Any

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.scheduling.sequence import SequenceScheduler
from shoal.batcher.scheduling.sequence_values import SequenceError
from shoal.errors import UnavailableError
from shoal.reasons import Reason
from tests.batcher.scheduling.many_seeds import Step, Steps, Told

IDLE_US = 50
START, END = 1, 2
#: The kinds of steps, each as often as it should come, and what they are told.
KINDS = (
    *["add"] * 10, *["begin"] * 6, *["settle"] * 5, *["complete"] * 6, "end", "end", *["clock"] * 4, "sleep", "sleep",
    "cancel", "again", "died", "up",
)  # fmt: skip
ARGUMENTS: dict[str, tuple[Sequence[int], ...]] = {
    "begin": (range(1, 6), (0, 0, 2)),  # id; END, too
    "add": (range(1, 25), (0, 0, 0, 1), (0, 0, 1, 20)),  # id, shape key, timeout
    "end": (range(1, 25),),
    "settle": (), "complete": (range(3),), "again": (range(3),),
    "clock": ((1, 1000, 20_000, IDLE_US * 1000 - 1, IDLE_US * 1000, IDLE_US * 1000),), "sleep": (),
    "cancel": (range(6),), "died": (range(3),), "up": (range(3),),
}  # fmt: skip
STEPS = Steps(KINDS, ARGUMENTS)
#: What a request says.
fields = attrgetter(
    "key", "rows", "shape_key", "arrival_ns", "priority", "timeout_us", "deadline_ns", "correlation", "flags"
)


class Lane:
    """One sequence, as the slow model has it."""

    __slots__ = ("correlation", "has_begun", "idle_since_ns", "is_over", "number", "running", "seat", "waiting")

    def __init__(self, correlation: int, number: int) -> None:
        self.correlation = correlation
        self.number = number  # in the order in which they began
        self.waiting: list[QueuedRequest] = []
        self.seat: tuple[int, int] | None = None  # slot, instance
        self.is_over = False
        self.running: int | None = None
        self.has_begun = False
        self.idle_since_ns: int | None = None

    def is_late(self, now_ns: int) -> bool:
        for request in self.waiting:
            if request.timeout_us and request.arrival_ns + request.timeout_us * 1000 <= now_ns:
                return True
        return False


@dataclass(frozen=True)
class Settings:
    """A model's configuration."""

    max_batch_size: int
    candidates: int | None  # None: direct
    delay_us: int
    utilization: float
    max_total_queue: int

    @property
    def num_slots(self) -> int:
        return self.candidates or max(1, self.max_batch_size)

    def scheduler(self) -> SequenceScheduler:
        strategy: dict[str, Any] = {"max_queue_delay_microseconds": self.delay_us}
        if self.candidates is None:
            kind, strategy["minimum_slot_utilization"] = "direct", self.utilization
        else:
            kind = "oldest"
            strategy.update(max_candidate_sequences=self.candidates, preferred_batch_size=[])
        batching = {kind: strategy, "max_sequence_idle_microseconds": IDLE_US, "iterative_sequence": False}
        config = {"max_batch_size": self.max_batch_size, "sequence_batching": batching}
        scheduler = from_config(config, self.max_total_queue)
        assert isinstance(scheduler, SequenceScheduler)
        return scheduler


class Schedule:
    """Drives a scheduler and its slow model through one schedule, checking whenever it has settled."""

    def __init__(self, settings: Settings, told: Told) -> None:
        self.settings = settings
        self.told = told
        self.scheduler = settings.scheduler()
        self.now_ns = 1000
        self.num_added = 0
        self.lanes: list[Lane] = []  # in the order in which they wait for a slot
        self.lost: set[int] = set()  # ids of those that ended with their instance
        self.lane_of: dict[int, Lane] = {}  # by the keys of requests that wait
        self.free: list[tuple[int, int]] = []  # seats, in any order
        self.instances: dict[int, list[Lane]] = {}  # those that run there
        self.refused: list[tuple[int, Reason]] = []

    # --- the slow model ---

    def live(self, correlation: int) -> Lane | None:
        for lane in self.lanes:
            if lane.correlation == correlation and not lane.is_over:
                return lane
        return None

    def seat(self) -> None:
        if self.free:
            for lane in self.lanes:
                if lane.seat is None and self.free:
                    lane.seat = min(self.free)
                    self.free.remove(lane.seat)

    def close(self, lane: Lane, reason: Reason | None) -> None:
        """It ends, and whatever waits is refused."""
        for request in lane.waiting:
            del self.lane_of[request.key]
            if reason is not None:
                self.refused.append((request.key, reason))
        lane.waiting.clear()
        lane.is_over = True
        if lane.running is None:
            self.leave(lane)

    def leave(self, lane: Lane) -> None:
        self.lanes.remove(lane)
        if lane.seat is not None:
            self.free.append(lane.seat)

    # --- steps ---

    def request(self, correlation: int, flags: int, shape_key: int, timeout_us: int) -> None:
        key, now_ns = self.num_added, self.now_ns
        self.num_added += 1
        lane = self.live(correlation)
        refusal = None
        if lane is None and not flags & START:
            refusal = "not started"
        elif len(self.lane_of) >= self.settings.max_total_queue:
            refusal = "full"
        request = QueuedRequest(key, 1, shape_key, now_ns, 0, timeout_us, 0, correlation, flags)
        try:
            self.scheduler.add(request, now_ns)
        except SequenceError as error:
            assert refusal == "not started"
            assert error.reason is (Reason.SEQUENCE_LOST if correlation in self.lost else Reason.NOT_STARTED)
        except UnavailableError as error:
            assert (str(error), refusal) == ("Exceeds maximum queue size", "full")
        else:
            assert refusal is None
        if refusal is not None:
            self.told[refusal] += 1
            return
        if lane is None:
            self.lost.discard(correlation)
            self.lanes.append(lane := Lane(correlation, self.num_added))
            self.seat()
            self.told["begun" if lane.seat else "backlog"] += 1
        lane.waiting.append(request)
        self.lane_of[key] = lane
        lane.idle_since_ns = None
        lane.is_over = bool(flags & END)

    def begin(self, correlation: int, end: int) -> None:
        self.request(correlation, START | end, 0, 0)

    def add(self, correlation: int, shape_key: int, timeout_us: int) -> None:
        self.request(self.known(correlation), 0 if self.lanes else START, shape_key, timeout_us)

    def end(self, correlation: int) -> None:
        self.request(self.known(correlation), END, 0, 0)

    def known(self, correlation: int) -> int:
        """Mostly one that has begun: the most numbers mean those."""
        if correlation < 3 or not self.lanes:
            return correlation
        return self.lanes[correlation % len(self.lanes)].correlation

    def cancel(self, index: int) -> None:
        """One of the last."""
        key = self.num_added - 1 - index
        lane = self.lane_of.pop(key, None)
        assert self.scheduler.cancel(key) == (lane is not None)
        if lane is not None:
            self.told["cancelled"] += 1
            lane.waiting = [request for request in lane.waiting if request.key != key]
            self.close(lane, Reason.CANCELLED)
            self.seat()

    def complete(self, instance: int) -> None:
        self.scheduler.complete(instance, self.now_ns, 0)
        for lane in self.instances.get(instance, ()):
            lane.running = None
            if not lane.waiting:
                lane.idle_since_ns = self.now_ns
                if lane.is_over:
                    self.leave(lane)
        if instance in self.instances:
            self.instances[instance] = []
        self.seat()

    def again(self, instance: int) -> None:
        """A worker gives one of its requests back."""
        for lane in self.instances.get(instance, [])[:1]:
            assert lane.running is not None
            if lane.running in self.lane_of:
                return
            request = QueuedRequest(lane.running, 1, 0, self.now_ns, correlation=lane.correlation)
            self.scheduler.add_again(request.in_sequence(lane.correlation, START))
            lane.waiting.insert(0, request)
            self.lane_of[request.key] = lane

    def died(self, instance: int) -> None:
        self.scheduler.remove_instance(instance)
        if self.instances.pop(instance, None) is None:
            return
        there = [lane for lane in self.lanes if lane.seat is not None and lane.seat[1] == instance]
        moved = sorted([lane for lane in there if not lane.has_begun], key=lambda lane: lane.number)
        self.lanes = moved + [lane for lane in self.lanes if lane not in moved]
        self.free = [seat for seat in self.free if seat[1] != instance]
        for lane in there:
            lane.running = lane.seat = None
            if lane.has_begun:
                self.told["lost"] += 1
                if not lane.is_over:
                    self.lost.add(lane.correlation)
                self.close(lane, Reason.SEQUENCE_LOST)
        self.seat()

    def up(self, instance: int) -> None:
        self.scheduler.add_instance(instance)
        if instance not in self.instances:
            self.instances[instance] = []
            self.free += [(slot, instance) for slot in range(self.settings.num_slots)]
            self.seat()

    def clock(self, step_ns: int) -> None:
        self.now_ns += step_ns

    def sleep(self) -> None:
        """As the batcher does: no longer than to the deadline."""
        deadline_ns = self.scheduler.next_deadline_ns()
        if deadline_ns is not None and deadline_ns > self.now_ns:
            self.now_ns = deadline_ns
            self.settle()
            assert self.scheduler.next_deadline_ns() != deadline_ns

    def settle(self) -> None:
        """As the batcher does after every burst of records."""
        now_ns = self.now_ns
        assert not self.scheduler.expire(now_ns)
        idle_ns = now_ns - IDLE_US * 1000
        for lane in [lane for lane in self.lanes if lane.idle_since_ns is not None and lane.idle_since_ns <= idle_ns]:
            self.told["idle"] += 1
            self.close(lane, None)
        self.seat()
        for lane in [lane for lane in self.lanes if lane.seat is None and lane.is_late(now_ns)]:
            self.told["timed out"] += 1
            self.close(lane, Reason.SEQUENCE_TIMED_OUT)
        while (batch := self.scheduler.take(now_ns)) is not None:
            self.check_batch(batch.instance, batch.requests, batch.rows)
        self.check_rest()

    def check_batch(self, instance: int, requests: Sequence[QueuedRequest], rows: int) -> None:
        running = self.instances[instance]
        assert running == []
        slots: list[int] = []
        for request in requests:
            lane = self.lane_of.pop(request.key)
            assert lane.running is None
            first = lane.waiting.pop(0)
            slot = (request.flags >> 8) - 1
            assert (slot, instance) == lane.seat
            expected = QueuedRequest(
                first.key, 1, first.shape_key, first.arrival_ns, 0, first.timeout_us, 0, lane.correlation,
                first.flags | slot + 1 << 8,
            )  # fmt: skip
            assert fields(request) == fields(expected)
            lane.running, lane.has_begun = request.key, True
            slots.append(slot)
            running.append(lane)
        if len(slots) > 1:
            assert len(set(slots)) == len(slots) <= self.settings.max_batch_size
            assert len({request.shape_key for request in requests}) == 1
        if self.settings.candidates is None:
            assert slots == sorted(slots)
            assert rows == slots[-1] + 1
            self.told["null rows" if rows > len(slots) else "full rows"] += 1
        else:
            assert rows == len(requests)
            self.told["batch of several" if rows > 1 else "batch of one"] += 1

    def check_rest(self) -> None:
        scheduler, now_ns = self.scheduler, self.now_ns
        refused = scheduler.refused()
        if refused or self.refused:
            assert sorted(refused) == sorted(self.refused)
            self.refused.clear()
        assert scheduler.pending == len(self.lane_of)
        assert bool(scheduler.oldest_ns()) == bool(self.lane_of)
        waits_ns = self.settings.delay_us * 1000
        if self.settings.candidates is None and not self.settings.utilization:
            waits_ns = 0
        ends_ns = None
        for lane in self.lanes:
            if lane.waiting and lane.seat is not None and not self.instances[lane.seat[1]]:
                assert lane.waiting[0].arrival_ns + waits_ns > now_ns  # nothing waits that could run
            if lane.idle_since_ns is not None and (ends_ns is None or lane.idle_since_ns + IDLE_US * 1000 < ends_ns):
                ends_ns = lane.idle_since_ns + IDLE_US * 1000
        deadline_ns = scheduler.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > now_ns
        assert ends_ns is None or (deadline_ns is not None and deadline_ns <= ends_ns)

    def finish(self) -> None:
        scheduler, now_ns = self.scheduler, self.now_ns
        assert {request.key for request in scheduler.drain()} == self.lane_of.keys()
        assert scheduler.pending == scheduler.oldest_ns() == 0
        assert scheduler.take(now_ns) is None
        for instance in self.instances:
            scheduler.complete(instance, now_ns, 0)
        scheduler.expire(now_ns + IDLE_US * 1000)
        assert scheduler.refused() == []
        assert scheduler.next_deadline_ns() is None
        assert len(scheduler._free) == self.settings.num_slots * len(self.instances)  # every slot came back


def run(settings: Settings, num_instances: int, steps: Iterable[Step], told: Told) -> None:
    """One schedule from its beginning to its end."""
    schedule = Schedule(settings, told)
    for instance in range(num_instances):
        schedule.up(instance)
    for name, arguments in steps:
        getattr(schedule, name)(*arguments)
    schedule.settle()
    schedule.finish()


@cache
def some_settings() -> list[Settings]:
    """All configurations, of either strategy."""
    return [Settings(*each) for each in product((0, 1, 2, 4), (None, None, 1, 3, 8), (0, 0, 5), (0.0, 0.5), (4, 30))]


def run_any(numbers: Sequence[int], told: Told) -> None:
    """The schedule that the numbers mean."""
    number = numbers[0]
    settings = some_settings()
    run(settings[number % len(settings)], 1 + number % 3 // 2, STEPS.of(numbers), told)
