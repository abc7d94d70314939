"""Schedules: a scheduler driven through arrivals, completions and time, every promise checked on the way.

The dynamic batcher is also compared, batch by batch, with its slow model.
"""

from collections.abc import Iterable

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Batch
from shoal.errors import UnavailableError
from tests.batcher.scheduling.many_seeds import Step, Told
from tests.batcher.scheduling.slow_model import NEVER, Settings, SlowModel, Wish, Wishes, service_order


class Schedule:
    """Drives a scheduler and its slow model through one schedule, checking whenever it has settled."""

    def __init__(self, settings: Settings, told: Told) -> None:
        """`told` counts what has come to pass, so that somebody can see that everything does."""
        self.settings = settings
        self.told = told
        self.scheduler = settings.scheduler()
        self.wishes: Wishes = {}
        self.idle: list[int] = []
        self.busy: list[int] = []
        self.model = SlowModel(settings, self.wishes, self.idle, self.busy) if settings.has_slow_model else None
        self.now_ns = 1000
        self.num_added = 0
        #: In order of arrival.
        self.waiting: dict[int, QueuedRequest] = {}

    def add(self, rows: int, shape_key: int, priority: int = 0, timeout_us: int = 0) -> None:
        settings, now_ns, key = self.settings, self.now_ns, self.num_added
        self.num_added += 1
        wish = self.wishes[key] = settings.only_wish or settings.wish(priority, timeout_us, now_ns)
        rows = min(rows, settings.max_rows)
        request = QueuedRequest(key, rows, shape_key, now_ns, priority, timeout_us, 0, 0, 0)
        is_full = len(self.waiting) >= settings.least_bound and self.is_full(wish)
        try:
            self.scheduler.add(request, now_ns)
        except UnavailableError as error:
            assert is_full
            assert str(error) == "Exceeds maximum queue size"
            self.told["refused"] += 1
            return
        assert not is_full
        self.waiting[key] = request
        if self.model:
            self.model.queue.append(request)

    def is_full(self, wish: Wish) -> bool:
        """Its level's bound is the policy's, which knows no payloads, and the server's, which does."""
        level, _, policy = wish
        queue = self.model.queue if self.model else self.waiting.values()
        num_of_level = [self.wishes[each.key][0] for each in queue].count(level)
        num_in_payloads = len(self.waiting) - len(queue)
        is_queue_full = 0 < policy.max_queue_size <= num_of_level
        return is_queue_full or num_of_level + num_in_payloads >= self.settings.max_total_queue

    def cancel(self, index: int) -> None:
        """One of the last."""
        key = self.num_added - 1 - index
        assert self.scheduler.cancel(key) == (key in self.waiting)
        self.remove(key)

    def remove(self, key: int) -> None:
        if self.waiting.pop(key, None) and self.model:
            self.model.remove(key)

    def add_instance(self, instance: int) -> None:
        self.scheduler.add_instance(instance)
        if instance not in self.idle and instance not in self.busy:
            self.idle.append(instance)

    def remove_instance(self, instance: int) -> None:
        self.scheduler.remove_instance(instance)
        self.idle[:] = [each for each in self.idle if each != instance]
        self.busy[:] = [each for each in self.busy if each != instance]

    def complete(self, number: int, compute_ns: int) -> None:
        """One of those that are busy, or any, which may be neither that nor there."""
        instance = self.busy[number % len(self.busy)] if self.busy and number > 2 else number
        self.scheduler.complete(instance, self.now_ns, compute_ns)
        if instance in self.busy:
            self.busy.remove(instance)
            if instance not in self.busy:
                self.idle.append(instance)

    def clock(self, step_ns: int) -> None:
        self.now_ns += step_ns

    def sleep(self) -> None:
        """As the batcher does: no longer than to the deadline."""
        deadline_ns = self.scheduler.next_deadline_ns()
        if deadline_ns is not None and deadline_ns > self.now_ns:
            self.told["slept"] += 1
            self.now_ns = deadline_ns
            self.settle()
            assert self.scheduler.next_deadline_ns() != deadline_ns

    def settle(self) -> None:
        """As the batcher does after every burst of records."""
        now_ns, waiting, model, idle = self.now_ns, self.waiting, self.model, self.idle
        self.expire()
        if not waiting:
            self.check_nothing_waits()
            return
        order = list(waiting.values())
        if not self.settings.is_fifo:
            order = service_order(order, self.wishes, now_ns)
            if model:
                model.arrange(now_ns)
        while (batch := self.scheduler.take(now_ns)) is not None:
            self.check_batch(batch, order)
            if model:
                assert batch == model.take(now_ns)
            for request in batch.requests:
                del waiting[request.key]
            if idle:
                assert batch.instance == idle.pop(0)
            else:
                self.told["worked ahead"] += 1
                assert not self.settings.is_dynamic
                assert 0 < self.busy.count(batch.instance) < 8
            self.busy.append(batch.instance)
        assert model is None or model.take(now_ns) is None
        self.check_rest()

    def expire(self) -> None:
        """Who is rejected is whoever is late where lateness is, neither fewer nor more."""
        rejected = self.scheduler.expire(self.now_ns)
        if self.settings.is_fifo:
            assert not rejected
            return
        late = [each for each in self.waiting.values() if self.wishes[each.key][1] <= self.now_ns]
        keys = [each.key for each in late if not self.wishes[each.key][2].delays]
        assert sorted([each.key for each in rejected]) == keys
        for request in rejected:
            self.told["expired"] += 1
            self.remove(request.key)
        if len(late) > len(rejected):
            self.told["late"] += 1

    def check_batch(self, batch: Batch, order: list[QueuedRequest]) -> None:
        """`order` is that in which those that wait are served; those of the batch leave it."""
        _, requests, rows = batch
        waiting, wishes, now_ns = self.waiting, self.wishes, self.now_ns
        if len(requests) == 1:
            self.told["batch of one"] += 1
            assert rows == requests[0].rows
        else:
            self.told["batch of several"] += 1
            assert rows == sum([request.rows for request in requests]) <= self.settings.max_rows
            assert self.settings.is_dynamic
            assert len({request.shape_key for request in requests}) == 1
        # Nobody is overtaken but by whom the policies say; so nobody starves for whom they do not.
        assert requests == tuple(order[: len(requests)])
        del order[: len(requests)]
        if self.settings.is_fifo:
            return
        if requests[0].arrival_ns > next(iter(waiting.values())).arrival_ns:
            self.told["overtook"] += 1
        if wishes[requests[0].key][0] != wishes[requests[-1].key][0]:
            self.told["batch of several levels"] += 1
        for request in requests:
            _, expiry_ns, policy = wishes[request.key]
            assert expiry_ns > now_ns or policy.delays

    def check_rest(self) -> None:
        scheduler, now_ns, waiting = self.scheduler, self.now_ns, self.waiting
        if not waiting:
            self.check_nothing_waits()
            return
        oldest_ns = next(iter(waiting.values())).arrival_ns
        assert scheduler.pending == len(waiting)
        assert scheduler.oldest_ns() == oldest_ns
        deadline_ns = scheduler.next_deadline_ns()
        expiry_ns = NEVER
        if not self.settings.is_fifo:
            assert not scheduler.expire(now_ns)
            expiries = [self.wishes[key][1] for key in waiting]
            expiry_ns = min([each for each in expiries if each > now_ns], default=NEVER)
        if self.idle:
            latest_ns = oldest_ns + self.settings.longest_wait_ns
            # Also says: without a delay nothing waits while an instance is idle.
            assert latest_ns > now_ns
            if self.settings.target_ns:
                self.told["waits for others"] += 1
            earliest_ns = min(latest_ns, expiry_ns)
            assert deadline_ns is not None
            assert deadline_ns == earliest_ns or (self.settings.target_ns and now_ns < deadline_ns < earliest_ns)
        elif expiry_ns < NEVER:
            assert deadline_ns == expiry_ns  # whatever the instances do
        else:
            assert deadline_ns is None or (self.settings.prefetches and deadline_ns > now_ns)

    def check_nothing_waits(self) -> None:
        scheduler = self.scheduler
        assert scheduler.pending == scheduler.oldest_ns() == 0
        assert scheduler.next_deadline_ns() is None
        assert scheduler.take(self.now_ns) is None

    def finish(self) -> None:
        assert self.scheduler.drain() == list(self.waiting.values())
        self.check_nothing_waits()


def run(settings: Settings, num_instances: int, steps: Iterable[Step], told: Told) -> None:
    """One schedule from its beginning to its end."""
    schedule = Schedule(settings, told)
    for instance in range(num_instances):
        schedule.add_instance(instance)
    for name, arguments in steps:
        getattr(schedule, name)(*arguments)
    schedule.settle()
    schedule.finish()
