"""Models that share resources, by seed: several models with schedulers of their own go through arrivals, completions,
cancellations and deaths of instances, as in the batcher; every promise of the rate limiter is checked on the way."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from random import Random

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, PolicyBatchScheduler
from shoal.batcher.scheduling.policy_queue import PolicyQueue, QueuePolicy
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import Batch, Scheduler
from shoal.model_config.rate_limiter import GLOBAL, Demand, Limit, Resource, capacities
from tests.batcher.scheduling.many_seeds import Step, Steps, Told

TIMEOUT_NS = 20_000
MAKERS: tuple[Callable[[], Scheduler], ...] = (
    lambda: DefaultScheduler(100),
    lambda: DynamicBatchScheduler(4, (4,), 0, RequestQueue(0, 100), prefetching=True),
    lambda: DynamicBatchScheduler(4, (4,), 5000, RequestQueue(0, 100), prefetching=True),
    lambda: PolicyBatchScheduler(4, (4,), 0, PolicyQueue({}, QueuePolicy(TIMEOUT_NS), 1, 1, 100)),
)
RESOURCES = (Resource("R", 0), Resource("R", 1), Resource("S", GLOBAL))
#: What may be said of them; enough for each instance alone.
LIMITS: tuple[tuple[Limit, ...], ...] = (
    (),
    (("R", 3, None), ("S", 4, 7)),
    (("R", 5, 0), ("R", 3, 1), ("S", 3, None)),
)

#: The kinds of steps, each as often as it should come; each is told two numbers, and takes what it needs of them.
KINDS = (
    *["add"] * 12, *["settle"] * 4, *["complete"] * 8, "clock", "clock", "cancel", "cancel", "retire", "die", "join",
    "join", "drain",
)  # fmt: skip
STEPS = Steps(KINDS, dict.fromkeys(KINDS, (range(24), range(24))))


@cache
def some_demands() -> list[Demand]:
    """What instances may need; one of four nothing."""
    random, demands = Random(0), []
    for number in range(24):
        needed = random.sample(RESOURCES, (0, 1, 1, 2)[number % 4])
        demands.append(Demand(random.choice((1, 1, 2, 5)), tuple([(each, random.randint(1, 3)) for each in needed])))
    return demands


class Schedule:
    """One to three models, with as many instances as come; what they were given is counted here a second time."""

    def __init__(self, num_models: int, limits: Sequence[Limit], configs: int, told: Told) -> None:
        """`configs` means one configuration for each model."""
        self.limits = limits
        self.limiter = RateLimiter(limits)
        kinds = [configs // 4**number % 4 for number in range(num_models)]
        self.models = [RateLimitedScheduler(MAKERS[kind](), self.limiter) for kind in kinds]
        self.timeouts_ns = [TIMEOUT_NS if kind == 3 else 0 for kind in kinds]
        #: Who has begun once does not expire while it waits for the second time, or does; neither is promised.
        self.again: set[int] = set()
        self.told = told
        self.now_ns = 1000
        self.num_requests = self.num_instances = 0
        self.waiting: list[dict[int, QueuedRequest]] = [{} for _ in self.models]
        self.demands: dict[int, Demand] = {}
        self.model_of: dict[int, int] = {}
        self.retired: set[int] = set()
        self.running: dict[int, list[Batch]] = {}
        self.left: set[int] = set()
        self.free: dict[Resource, int] = {}

    def join(self, model: int, demand: int) -> None:
        if len(self.demands) > 5:
            return
        instance, self.num_instances = self.num_instances, self.num_instances + 1
        self.demands[instance] = some_demands()[demand]
        self.model_of[instance] = model % len(self.models)
        self.limiter.add(instance, self.demands[instance])
        self.models[self.model_of[instance]].add_instance(instance)
        self.free = {}  # to be counted again

    def retire(self, number: int, _: int) -> None:
        """It gets nothing more, and finishes what it has."""
        instances = [each for each in self.demands if each not in self.retired]
        if instances:
            instance = instances[number % len(instances)]
            self.models[self.model_of[instance]].remove_instance(instance)
            self.retired.add(instance)

    def die(self, number: int, _: int) -> None:
        if not self.demands:
            return
        instance = list(self.demands)[number % len(self.demands)]
        self.limiter.remove(instance)
        model = self.model_of[instance]
        self.models[model].remove_instance(instance)
        for batch in reversed(self.running.pop(instance, [])):
            for request in reversed(batch.requests):
                self.left.discard(request.key)
                self.again.add(request.key)
                self.waiting[model][request.key] = request
                self.models[model].add_first(request)
        del self.demands[instance]
        self.retired.discard(instance)
        self.free = {}  # to be counted again

    def count(self) -> None:
        """What is left of each resource. A death may have made less than others have already."""
        self.free = capacities(self.demands.values(), self.limits)
        for instance in self.running:
            for name, num_needed in self.demands[instance].resources:
                self.free[name] -= num_needed

    def add(self, model: int, rows: int) -> None:
        number = model % len(self.models)
        key, self.num_requests = self.num_requests, self.num_requests + 1
        request = QueuedRequest(key, 1 + rows % 4, 0, self.now_ns, 0, 0, 0, 0, 0)
        self.models[number].add(request, self.now_ns)
        self.waiting[number][key] = request

    def cancel(self, index: int, _: int) -> None:
        """One of the last."""
        key = self.num_requests - 1 - index // 4
        for waiting, model in zip(self.waiting, self.models, strict=True):
            assert model.cancel(key) == (waiting.pop(key, None) is not None)

    def drain(self, number: int, seldom: int) -> None:
        if seldom < 3:
            waiting = self.waiting[number % len(self.models)]
            drained = [each.key for each in self.models[number % len(self.models)].drain()]
            assert sorted(drained) == sorted(waiting)
            waiting.clear()

    def clock(self, _: int, __: int) -> None:
        self.now_ns += 5000

    def complete(self, number: int, compute: int) -> None:
        if not self.running:
            return
        instance = list(self.running)[number % len(self.running)]
        self.running[instance].pop(0)
        if not self.running[instance]:
            del self.running[instance]
            if self.free:
                for name, num_needed in self.demands[instance].resources:
                    self.free[name] += num_needed
        compute_ns = (1_000_000, 100_000, 10_000)[compute % 3]
        self.models[self.model_of[instance]].complete(instance, self.now_ns, compute_ns)

    def settle(self, _: int = 0, __: int = 0) -> None:
        """As the batcher does after every burst of records."""
        if not self.free:
            self.count()
        awake = list(range(len(self.models)))
        while awake:
            for number in awake:
                for request in self.models[number].expire(self.now_ns):
                    assert self.is_late(number, request)
                    del self.waiting[number][request.key]
                    self.told["expired"] += 1
                while (batch := self.models[number].take(self.now_ns)) is not None:
                    self.begin(number, batch)
            allocated = self.limiter.allocate()
            self.told["allocated"] += len(allocated)
            awake = sorted({self.model_of[instance] for instance in allocated})
        self.check_rest()

    def begin(self, number: int, batch: Batch) -> None:
        instance, requests, rows = batch
        waiting = self.waiting[number]
        assert self.model_of[instance] == number
        assert instance in self.demands
        assert instance not in self.retired
        assert rows == sum([request.rows for request in requests]) > 0
        if needs := self.demands[instance].resources:
            assert instance not in self.running
            for name, num_needed in needs:
                assert self.free[name] >= num_needed
                self.free[name] -= num_needed
        for request in requests:
            assert request.key not in self.left
            assert request.key in self.again or not self.is_late(number, request)
            self.left.add(request.key)
            del waiting[request.key]
        self.running.setdefault(instance, []).append(batch)

    def is_late(self, number: int, request: QueuedRequest) -> bool:
        return 0 < self.timeouts_ns[number] <= self.now_ns - request.arrival_ns

    def check_rest(self) -> None:
        for model, waiting, timeout_ns in zip(self.models, self.waiting, self.timeouts_ns, strict=True):
            assert model.pending == len(waiting)
            if not waiting:
                assert model.oldest_ns() == 0
                continue
            assert model.oldest_ns() >= min([request.arrival_ns for request in waiting.values()])
            if timeout_ns:  # in the queue, or staged
                expiries_ns = [each.arrival_ns + timeout_ns for each in waiting.values() if each.key not in self.again]
                due_ns = model.next_deadline_ns()
                assert not expiries_ns or (due_ns is not None and self.now_ns < due_ns <= min(expiries_ns))
        staged = [each for each in self.demands if each in self.limiter._waiting]
        if not staged:
            return
        self.told["waited"] += 1
        for instance in staged:
            needs = self.demands[instance].resources
            others = {name for each in staged if each != instance for name, _ in self.demands[each].resources}
            if others.isdisjoint([name for name, _ in needs]):  # nobody can be before it
                assert any(self.free[name] < num_needed for name, num_needed in needs)

    def finish(self) -> None:
        """When nothing comes any more, everything that can be executed is."""
        self.now_ns += 10**9
        self.settle()
        while self.running:
            for _ in range(len(self.running)):
                self.complete(0, 0)
            self.settle()
        for number, waiting in enumerate(self.waiting):
            if waiting:
                instances = {each for each, model in self.model_of.items() if model == number}
                assert instances.isdisjoint(self.demands.keys() - self.retired)


def run(schedule: Schedule, steps: Iterable[Step]) -> None:
    """The whole of it, and then the rest."""
    for name, arguments in steps:
        getattr(schedule, name)(*arguments)
    schedule.finish()


def run_any(numbers: Sequence[int], told: Told) -> None:
    """The schedule that the numbers mean."""
    number = numbers[0]
    schedule = Schedule((1, 1, 1, 1, 1, 2, 2, 3)[number >> 13], LIMITS[number // 3 % 3], number // 9 % 64, told)
    for instance in range(2):
        schedule.join(instance + number, (number >> 4 + 4 * instance) % 24)
    run(schedule, STEPS.of(numbers))
