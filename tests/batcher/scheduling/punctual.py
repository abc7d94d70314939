"""What a scheduler promises about deadlines, checked whenever it has settled, beside its twin that knows of none."""

from collections.abc import Iterable, Sequence

from shoal.batcher.scheduling.admission import MIN_KNOWN, LateError
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError
from tests.batcher.scheduling.many_seeds import Step, Steps, Told
from tests.batcher.scheduling.seeded import FAMILIES, some_settings
from tests.batcher.scheduling.slow_model import Settings

#: The kinds of steps, each as often as it should come.
KINDS = (
    *["add"] * 12, *["settle"] * 4, *["complete"] * 8, *["clock"] * 4, "sleep", "cancel", "die", "add_instance",
    "remove_instance",
)  # fmt: skip
#: What they are told.
ARGUMENTS: dict[str, tuple[Sequence[int], ...]] = {
    "add": ((1, 1, 2, 6), (0, 0, 1), (0, 1, 2, 3), (0, 3, 10**6), (0, 1, 3000, 10_000, 30_000, 100_000)),
    "settle": (),
    "complete": (range(3),),
    "clock": ((1, 100, 1000, 4999, 5000, 15_000),),
    "sleep": (),
    "cancel": (range(6),),
    "die": (range(3),),
    "add_instance": (range(3),),
    "remove_instance": (range(3),),
}
STEPS = Steps(KINDS, ARGUMENTS)


class PunctualSchedule:
    """A schedule as far as it has gone."""

    def __init__(self, settings: Settings, told: Told) -> None:
        self.told = told
        self.scheduler, self.twin = DeadlineScheduler(settings.scheduler()), settings.scheduler()
        self.now_ns = 1000
        self.waiting: dict[int, QueuedRequest] = {}
        self.running: dict[int, list[tuple[QueuedRequest, ...]]] = {}
        self.since_ns: dict[int, int] = {}
        self.num_executed = self.longest_ns = self.key = 0

    def practise(self) -> None:
        """As many executions as must be known, before anybody is refused."""
        for _ in range(MIN_KNOWN):
            self.add(1, 0, 0, 0, 0)
            self.now_ns += 100_000  # whatever the delay is
            batch = self.scheduler.take(self.now_ns)
            assert batch is not None
            assert batch == self.twin.take(self.now_ns)
            del self.waiting[self.key]
            self.running[0].append(batch.requests)
            self.since_ns[0], self.now_ns = self.now_ns, self.now_ns + 5000
            self.complete(0)

    def add(self, rows: int, shape_key: int, priority: int, timeout_us: int, left_ns: int) -> None:
        self.key += 1
        now_ns = self.now_ns
        deadline_ns = now_ns + left_ns if left_ns else 0
        request = QueuedRequest(self.key, rows, shape_key, now_ns, priority, timeout_us, deadline_ns, 0, 0)
        try:
            self.scheduler.add(request, now_ns)
        except LateError as late:
            self.told["too late"] += 1
            assert late.needed_ns > late.left_ns >= 0
            assert self.num_executed >= MIN_KNOWN
            assert self.waiting or all(self.running.values()), "an idle instance takes whoever comes"
            return
        except UnavailableError:
            self.told["full"] += 1
            try:
                self.twin.add(request, now_ns)
            except UnavailableError:
                return
            raise
        self.twin.add(request, now_ns)
        self.waiting[self.key] = request

    def settle(self) -> None:
        """As the batcher does after every burst of records."""
        scheduler, twin, waiting, now_ns = self.scheduler, self.twin, self.waiting, self.now_ns
        expired, twins = scheduler.expire(now_ns), twin.expire(now_ns)
        assert expired[: len(twins)] == twins
        for request in expired:
            del waiting[request.key]
        for request in expired[len(twins) :]:
            self.told["left"] += 1
            assert 0 < request.deadline_ns <= now_ns + self.longest_ns
            assert twin.cancel(request.key)
        while (batch := scheduler.take(now_ns)) is not None:
            assert batch == twin.take(now_ns)
            for request in batch.requests:
                del waiting[request.key]
                assert not 0 < request.deadline_ns <= now_ns, "nobody is begun who is late"
            executions = self.running.setdefault(batch.instance, [])
            if not executions:
                self.since_ns[batch.instance] = now_ns
            executions.append(batch.requests)
        assert twin.take(now_ns) is None
        self.check_rest()

    def check_rest(self) -> None:
        scheduler, twin = self.scheduler, self.twin
        assert scheduler.pending == twin.pending == len(self.waiting)
        assert scheduler.oldest_ns() == twin.oldest_ns()
        deadlines_ns = [each.deadline_ns for each in self.waiting.values() if each.deadline_ns]
        twins_ns = twin.next_deadline_ns()
        if twins_ns is not None:
            deadlines_ns.append(twins_ns)
        due_ns = scheduler.next_deadline_ns()
        assert due_ns is None or (self.waiting and due_ns > self.now_ns)
        assert not deadlines_ns or (due_ns is not None and due_ns <= min(deadlines_ns))

    def complete(self, instance: int) -> None:
        executions = self.running.get(instance)
        if not executions:
            return
        executions.pop(0)
        duration_ns = self.now_ns - self.since_ns[instance]
        self.since_ns[instance] = self.now_ns
        self.num_executed += 1
        self.longest_ns = max(self.longest_ns, duration_ns, 1)
        self.scheduler.complete(instance, self.now_ns, duration_ns)
        self.twin.complete(instance, self.now_ns, duration_ns)

    def die(self, instance: int) -> None:
        """What the instance had waits again, alone and before all others."""
        requests = [each for batch in self.running.pop(instance, []) for each in batch]
        for scheduler in (self.scheduler, self.twin):
            scheduler.remove_instance(instance)
            for request in reversed(requests):
                scheduler.add_first(request)
        self.waiting.update({request.key: request for request in requests})

    def remove_instance(self, instance: int) -> None:
        """It makes way, and finishes what it has; of that nothing is heard any more."""
        self.running.pop(instance, None)
        self.scheduler.remove_instance(instance)
        self.twin.remove_instance(instance)

    def add_instance(self, instance: int) -> None:
        self.running.setdefault(instance, [])
        self.scheduler.add_instance(instance)
        self.twin.add_instance(instance)

    def cancel(self, index: int) -> None:
        """One of the last."""
        key = self.key - index
        is_waiting = self.waiting.pop(key, None) is not None
        assert self.scheduler.cancel(key) == self.twin.cancel(key) == is_waiting

    def clock(self, step_ns: int) -> None:
        self.now_ns += step_ns

    def sleep(self) -> None:
        due_ns = self.scheduler.next_deadline_ns()
        if due_ns is not None and due_ns > self.now_ns:
            self.now_ns = due_ns
            self.settle()


def run(settings: Settings, steps: Iterable[Step], told: Told, *, is_practised: bool) -> None:
    """One schedule from its beginning to its end; one that is practised knows how long executions take."""
    schedule = PunctualSchedule(settings, told)
    schedule.add_instance(0)
    if is_practised:
        schedule.practise()
    for name, arguments in steps:
        getattr(schedule, name)(*arguments)
    schedule.settle()
    assert schedule.scheduler.drain() == schedule.twin.drain()
    assert schedule.scheduler.pending == 0
    assert schedule.scheduler.next_deadline_ns() is None


def run_any(numbers: Sequence[int], told: Told) -> None:
    """The schedule that the numbers mean; one of 32 is practised."""
    number = numbers[0]
    settings = some_settings(FAMILIES[(number % 8 + 1) // 4])[number // 8 % 512]
    run(settings, STEPS.of(numbers), told, is_practised=number >= 31 << 11)
