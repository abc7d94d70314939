"""A simulated server around a scheduler: invented clock, models with a latency curve, loads of several shapes.

Open loads are lists of arrival times; in a closed one each client asks again a while after it was answered.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shoal.batcher.scheduling.scheduler import QueuedRequest, Scheduler

MS = 1_000_000
SECOND = 1000 * MS

Curve = Callable[[int], float]  # rows → ms

CURVES: dict[str, Curve] = {
    "affine": lambda rows: 4 + 0.25 * rows,
    "flat": lambda rows: 5,
    "linear": lambda rows: 1.0 * rows,
    "steps": lambda rows: 4.0 * math.ceil(rows / 8),
}


@dataclass
class Outcome:
    """Latencies of the answered requests, when they were answered."""

    latencies_ns: list[int] = field(default_factory=list)
    num_batches: int = 0

    def goodput(self, target_ns: int, seconds: float) -> float:
        """Answers within the target, per second."""
        return sum(latency <= target_ns for latency in self.latencies_ns) / seconds


class Simulation:
    """Runs a load against a scheduler and instances."""

    def __init__(self, scheduler: Scheduler, curve: Curve, random: Random, *, num_instances: int = 1) -> None:
        self.scheduler = scheduler
        self.curve = curve
        self.random = random
        self.outcome = Outcome()
        self.now_ns = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.num_events = self.num_requests = 0
        self.turn_around: Callable[[], int] | None = None
        #: By when an execution begins: how many times as long it takes.
        self.slowness: Callable[[int], float] = lambda _now_ns: 1.0
        for instance in range(num_instances):
            scheduler.add_instance(instance)

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (when_ns, self.num_events, what))

    def arrive(self) -> None:
        self.num_requests += 1
        self.scheduler.add(QueuedRequest(self.num_requests, 1, 0, self.now_ns), self.now_ns)

    def run(self, end_ns: int) -> Outcome:
        """What is due until then."""
        while True:
            deadline_ns = self.scheduler.next_deadline_ns()
            next_ns = self.events[0][0] if self.events else end_ns
            if deadline_ns is not None and deadline_ns < next_ns:
                self.now_ns = deadline_ns
            else:
                if not self.events or next_ns >= end_ns:
                    return self.outcome
                self.now_ns, _, what = heapq.heappop(self.events)
                what()
                while self.events and self.events[0][0] == self.now_ns:
                    heapq.heappop(self.events)[2]()
            if self.now_ns >= end_ns:
                return self.outcome
            self.dispatch()

    def dispatch(self) -> None:
        now_ns = self.now_ns
        while (batch := self.scheduler.take(now_ns)) is not None:
            took_ns = int(self.curve(batch.rows) * MS * self.random.uniform(0.95, 1.1) * self.slowness(now_ns))
            self.outcome.num_batches += 1
            arrivals = [request.arrival_ns for request in batch.requests]
            self.at(now_ns + took_ns, self.completion(batch.instance, took_ns, arrivals))

    def completion(self, instance: int, took_ns: int, arrivals: list[int]) -> Callable[[], None]:
        def complete() -> None:
            self.scheduler.complete(instance, self.now_ns, took_ns)
            self.outcome.latencies_ns += [self.now_ns - each for each in arrivals]
            if self.turn_around is not None:
                for _ in arrivals:
                    self.at(self.now_ns + self.turn_around(), self.arrive)

        return complete


def steady(per_s: float, end_ns: int, random: Random) -> list[int]:
    """Poisson arrivals."""
    return ramp(per_s, per_s, end_ns, random)


def ramp(from_s: float, to_s: float, end_ns: int, random: Random) -> list[int]:
    """Poisson arrivals at a rate that grows."""
    arrivals, now_ns = [], 0.0
    while now_ns < end_ns:
        per_s = from_s + (to_s - from_s) * now_ns / end_ns
        now_ns += random.expovariate(per_s) * SECOND
        arrivals.append(int(now_ns))
    return arrivals


def bursty(per_s: float, end_ns: int, random: Random) -> list[int]:
    """Sixteen at a time, within a millisecond."""
    begins = steady(per_s / 16, end_ns, random)
    return sorted(begin + random.randrange(MS) for begin in begins for _ in range(16))
