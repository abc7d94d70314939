"""A model under load, simulated: arrivals, executions that take their time, and who is answered before the deadline."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from shoal.batcher.scheduling.admission import LateError
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config

MS = 1_000_000


@dataclass(frozen=True)
class Load:
    """Requests of one row that come at random, so many times as fast as they can be executed."""

    times_capacity: float
    execution_ns: Callable[[Random, int], float]  # of so many rows
    max_batch_size: int = 1  # 1: without dynamic batching
    num_instances: int = 1
    deadline_ns: int = 200 * MS
    duration_ns: int = 20_000 * MS

    @property
    def capacity(self) -> float:
        """Requests a ns, in full batches."""
        mean_ns = sum([self.execution_ns(Random(seed), self.max_batch_size) for seed in range(1000)]) / 1000
        return self.num_instances * self.max_batch_size / mean_ns


@dataclass
class Outcome:
    """What became of the requests."""

    good: int = 0
    late: int = 0
    refused: int = 0
    expired: int = 0
    capacity: float = 0

    @property
    def goodput(self) -> float:
        """Good answers as a share of what can be executed."""
        return self.good / self.capacity


def simulate(load: Load, seed: int) -> Outcome:
    """One run, from idle instances on."""
    random = Random(seed)
    config: dict[str, Any] = {"max_batch_size": load.max_batch_size}
    if load.max_batch_size > 1:
        config["dynamic_batching"] = {}
    scheduler = DeadlineScheduler(from_config(config, 100_000))
    for instance in range(load.num_instances):
        scheduler.add_instance(instance)
    capacity = load.capacity
    outcome = Outcome(capacity=capacity * load.duration_ns)
    completions: list[tuple[int, int, int, tuple[QueuedRequest, ...]]] = []
    next_arrival = key = now_ns = 0
    while now_ns < load.duration_ns:
        due = [next_arrival, *[each[0] for each in completions[:1]]]
        deadline_ns = scheduler.next_deadline_ns()
        now_ns = min(due) if deadline_ns is None else min(*due, deadline_ns)
        while completions and completions[0][0] <= now_ns:
            _, instance, compute_ns, requests = heapq.heappop(completions)
            scheduler.complete(instance, now_ns, compute_ns)
            good = sum([now_ns <= request.deadline_ns for request in requests])
            outcome.good += good
            outcome.late += len(requests) - good
        if next_arrival <= now_ns:
            key += 1
            next_arrival += int(random.expovariate(capacity * load.times_capacity))
            try:
                scheduler.add(QueuedRequest(key, 1, 0, now_ns, deadline_ns=now_ns + load.deadline_ns), now_ns)
            except LateError:
                outcome.refused += 1
        outcome.expired += len(scheduler.expire(now_ns))
        while (batch := scheduler.take(now_ns)) is not None:
            compute_ns = int(load.execution_ns(random, batch.rows))
            heapq.heappush(completions, (now_ns + compute_ns, batch.instance, compute_ns, batch.requests))
    return outcome
