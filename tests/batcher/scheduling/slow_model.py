"""A slow model of the schedulers: the rules of the dynamic batcher and of its queue, walked from scratch each time."""

from dataclasses import dataclass
from typing import Any

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler, PolicyBatchScheduler
from shoal.batcher.scheduling.goal import GoalBatchScheduler, GoalPolicyScheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.policy_queue import PolicyQueue, QueuePolicy
from shoal.batcher.scheduling.queue import QueuedRequest, RequestQueue
from shoal.batcher.scheduling.scheduler import Scheduler

NEVER = float("inf")


@dataclass(frozen=True)
class Policy:
    """A queue policy; timeouts in us."""

    timeout_us: int = 0
    allows_override: bool = False
    delays: bool = False
    max_queue_size: int = 0

    def config(self) -> dict[str, Any]:
        return {
            "timeout_action": "DELAY" if self.delays else "REJECT",
            "default_timeout_microseconds": self.timeout_us,
            "allow_timeout_override": self.allows_override,
            "max_queue_size": self.max_queue_size,
        }


@dataclass
class Settings:
    """What a generated model configuration says, and what follows of it. Nobody changes them."""

    is_dynamic: bool
    max_batch_size: int
    preferred: tuple[int, ...]
    delay_us: int
    max_total_queue: int
    default_policy: Policy = Policy()
    #: Policies of levels 1, 2 …; None where a level has none of its own.
    levels: tuple[Policy | None, ...] = ()
    default_level: int = 0
    #: Batching by goal, instead of by preferred sizes and delay; 0: not.
    target_ns: int = 0

    def __post_init__(self) -> None:
        self.max_rows = max(1, self.max_batch_size)
        self.preferred_rows = frozenset(self.preferred or (self.max_batch_size,)) - {0}
        self.delay_ns = self.delay_us * 1000 if self.is_dynamic else 0
        #: Of a request, while an instance is idle.
        self.longest_wait_ns = self.target_ns or self.delay_ns
        #: What is learned is not modelled again.
        self.has_slow_model = self.is_dynamic and not self.target_ns
        policy = self.default_policy if self.is_dynamic else Policy()
        #: Of each level; of the only one, where there are none.
        self.policies = tuple([each or policy for each in self.levels]) or (policy,)
        self.queue_policies = tuple(
            [
                QueuePolicy(1000 * each.timeout_us, each.allows_override, each.delays, each.max_queue_size)
                for each in self.policies
            ]
        )
        #: Nobody is overtaken, and nobody expires.
        self.is_fifo = len(self.policies) == 1 and not self.policies[0].timeout_us
        #: Of everybody, if it is the same.
        self.only_wish = (1, NEVER, self.policies[0]) if self.is_fifo else None
        #: Nobody is refused as long as fewer wait.
        self.least_bound = min([each.max_queue_size or NEVER for each in self.policies] + [self.max_total_queue])
        has_policy = self.levels or policy.timeout_us or policy.allows_override or policy.max_queue_size
        self.prefetches = not self.target_ns and not has_policy
        self.config: dict[str, Any] = {"max_batch_size": self.max_batch_size}
        if self.is_dynamic:
            self.config["dynamic_batching"] = {
                "preferred_batch_size": list(self.preferred),
                "max_queue_delay_microseconds": self.delay_us,
                "default_queue_policy": policy.config(),
                "priority_levels": len(self.levels),
                "default_priority_level": self.default_level,
                "priority_queue_policy": {
                    str(level): each.config() for level, each in enumerate(self.levels, 1) if each
                },
            }

    def scheduler(self) -> Scheduler:
        """As `from_config` makes it of the configuration; by hand, which takes a third of the time, and with targets
        shorter than configurations can say."""
        total, goal = self.max_total_queue, self.target_ns
        if not self.is_dynamic:
            return DefaultScheduler(total)
        if self.levels or self.default_policy.timeout_us:
            levels = PolicyQueue(
                dict(enumerate(self.queue_policies, 1)),
                QueuePolicy(),
                len(self.queue_policies),
                self.default_level or 1,
                total,
            )
            if goal:
                return GoalPolicyScheduler(self.max_batch_size, goal, levels)
            return PolicyBatchScheduler(self.max_batch_size, tuple(self.preferred_rows), self.delay_ns, levels)
        fifo = RequestQueue(self.default_policy.max_queue_size, total)
        if goal:
            return GoalBatchScheduler(self.max_batch_size, goal, fifo)
        return DynamicBatchScheduler(
            self.max_batch_size, tuple(self.preferred_rows), self.delay_ns, fifo, prefetching=self.prefetches
        )

    def wish(self, priority: int, timeout_us: int, arrival_ns: int) -> "Wish":
        level = 1
        if self.levels:
            level = priority if 1 <= priority <= len(self.levels) else self.default_level
        policy = self.policies[level - 1]
        expires_us = policy.timeout_us
        if policy.allows_override and 0 < timeout_us < expires_us:
            expires_us = timeout_us
        return level, arrival_ns + 1000 * expires_us if expires_us else NEVER, policy


#: What a request's level and policy come to: level, when it expires, policy.
Wish = tuple[int, float, Policy]
Wishes = dict[int, Wish]


def service_order(requests: list[QueuedRequest], wishes: Wishes, now_ns: int) -> list[QueuedRequest]:
    """By level, what is late behind what is on time, then by arrival (keys count up), late ones by lateness."""
    if len(requests) < 2:
        return requests.copy()
    places = []
    for request in requests:
        level, expiry_ns, _ = wishes[request.key]
        places.append((level, expiry_ns if expiry_ns <= now_ns else 0, request.key, request))
    return [place[3] for place in sorted(places)]


class SlowPayload:
    """Requests that wait for an instance together."""

    def __init__(self) -> None:
        self.requests: list[QueuedRequest] = []
        self.can_grow = self.can_merge = True

    @property
    def rows(self) -> int:
        return sum([request.rows for request in self.requests])


class SlowModel:
    """The dynamic batcher in lists, with no memory of earlier wake-ups and no short cut.

    `idle` and `busy` are the instances, kept by somebody else.
    """

    def __init__(self, settings: Settings, wishes: Wishes, idle: list[int], busy: list[int]) -> None:
        self.settings = settings
        self.wishes = wishes
        self.queue: list[QueuedRequest] = []
        self.payloads: list[SlowPayload] = []
        self.idle = idle
        self.busy = busy

    def remove(self, key: int) -> None:
        for requests in (self.queue, *[payload.requests for payload in self.payloads]):
            requests[:] = [request for request in requests if request.key != key]
        self.payloads = [payload for payload in self.payloads if payload.requests]

    def has_slot(self) -> bool:
        if not self.settings.prefetches:
            return len(self.payloads) < len(self.idle)
        return len(self.payloads) < 2 * (len(self.idle) + len(self.busy))

    def arrange(self, now_ns: int) -> None:
        """Who is served first now is the first of the queue."""
        self.queue = service_order(self.queue, self.wishes, now_ns)

    def take(self, now_ns: int) -> Batch | None:
        """The next batch; its instance is to be the one that is idle for longest."""
        while self.queue and self.has_slot() and self.wake_up(now_ns):
            pass
        if not self.idle or not self.payloads:
            return None
        first = self.payloads.pop(0)
        while self.settings.delay_ns and self.payloads and self.merges(first, self.payloads[0], now_ns):
            first.requests += self.payloads.pop(0).requests
        return Batch(self.idle[0], tuple(first.requests), first.rows)

    def merges(self, first: SlowPayload, second: SlowPayload, now_ns: int) -> bool:
        return (
            first.can_merge
            and second.can_merge
            and first.requests[0].shape_key == second.requests[0].shape_key
            and now_ns > second.requests[0].arrival_ns + self.settings.delay_ns
            and first.rows + second.rows <= self.settings.max_rows
        )

    def wake_up(self, now_ns: int) -> bool:
        delay_ns, max_rows, preferred = self.settings.delay_ns, self.settings.max_rows, self.settings.preferred_rows
        largest = max(preferred, default=0)
        is_new = not self.payloads or not self.payloads[-1].can_grow
        payload = SlowPayload() if is_new else self.payloads[-1]
        batch = payload.requests.copy()
        num_before, num_best, payload_rows = len(batch), 0, payload.rows
        rows = payload_rows
        send_now = False
        for request in self.queue:
            if batch:
                if rows + request.rows > largest and not num_best:
                    num_best = len(batch) - num_before
                    payload.can_grow = False
                if rows + request.rows > max_rows:
                    send_now = True
                    break
                if request.shape_key != batch[0].shape_key:
                    payload.can_grow = payload.can_merge = False
                    send_now = True
                    break
            batch.append(request)
            rows += request.rows
            if rows in preferred:
                num_best = len(batch) - num_before
        pending = batch[num_before:]
        is_exceeded = delay_ns > 0 and any(now_ns >= request.arrival_ns + delay_ns for request in pending)
        if num_best and not is_exceeded:
            payload.can_grow = payload.can_grow and delay_ns > 0
            pending = pending[:num_best]
        elif not pending:
            payload.can_grow = False
            return True
        elif send_now or rows >= largest:
            payload.can_grow = False
        elif not is_exceeded and delay_ns > 0 and (is_new or payload_rows in preferred):
            return False
        payload.requests += pending
        del self.queue[: len(pending)]
        if is_new:
            self.payloads.append(payload)
        return True
