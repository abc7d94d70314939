"""A model under load whose clients give up, simulated: how many are answered before that."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.patience import Patience
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from shoal.errors import UnavailableError

MS = 1_000_000
#: When the server learns that a client has hung up, after it has.
NOTICED_NS = 1 * MS
#: How long a patient client waits: longer than any run.
PATIENT_NS = 10**18


@dataclass(frozen=True)
class Crowd:
    """Requests of one row that come at random, so many times as fast as they can be executed."""

    times_capacity: float
    #: How long a client waits, in ns; None: as long as it takes.
    patience_ns: Callable[[Random], int] | None
    max_batch_size: int = 1
    execution_ms: int = 10
    duration_ns: int = 20_000 * MS


@dataclass
class Outcome:
    """What became of the requests, and how many came while there was a limit; times in ns."""

    good: int = 0
    vain: int = 0
    refused: int = 0
    patient_refused: int = 0
    given_up: int = 0
    longest_ns: int = 0
    limited: int = 0
    limit_ns: int = 0
    goodput: float = 0.0


def simulate(crowd: Crowd, seed: int, *, learns: bool = True) -> Outcome:
    """One run, from an idle instance on. `learns` is false for first come, first served."""
    random = Random(seed)
    config: dict[str, Any] = {"max_batch_size": crowd.max_batch_size}
    if crowd.max_batch_size > 1:
        config["dynamic_batching"] = {}
    scheduler = from_config(config, 1024)
    scheduler.add_instance(0)
    patience, outcome = Patience(), Outcome()
    rate = crowd.times_capacity * crowd.max_batch_size / (crowd.execution_ms * MS)
    completions: list[tuple[int, int, int, tuple[QueuedRequest, ...]]] = []
    hang_ups: list[tuple[int, int]] = []
    queued: dict[int, QueuedRequest] = {}
    running: set[int] = set()
    next_arrival = key = now_ns = num_answered = 0
    gives_up_ns: dict[int, int] = {}
    while now_ns < crowd.duration_ns:
        due = [next_arrival, *[each[0] for each in completions[:1]], *[each[0] for each in hang_ups[:1]]]
        deadline_ns = scheduler.next_deadline_ns()
        now_ns = min(due) if deadline_ns is None else min(*due, deadline_ns)
        while completions and completions[0][0] <= now_ns:
            _, _, compute_ns, requests = heapq.heappop(completions)
            scheduler.complete(0, now_ns, compute_ns)
            for request in requests:
                num_answered += 1
                running.discard(request.key)
                is_good = now_ns <= gives_up_ns[request.key]
                outcome.good += is_good
                outcome.vain += not is_good
                if is_good:
                    outcome.longest_ns = max(outcome.longest_ns, now_ns - request.arrival_ns)
        while hang_ups and hang_ups[0][0] <= now_ns:
            request = queued[heapq.heappop(hang_ups)[1]]
            if scheduler.cancel(request.key):
                outcome.given_up += 1
                if learns:
                    patience.gave_up(now_ns - request.arrival_ns, num_answered, now_ns)
            elif request.key in running:
                patience.answer_became_useless()
        if next_arrival <= now_ns:
            key += 1
            next_arrival += max(1, int(random.expovariate(rate)))
            limit_ns = patience.current_ns(scheduler.pending, now_ns)
            if limit_ns and not scheduler.heeds_deadlines:
                scheduler = DeadlineScheduler(scheduler)
            request = QueuedRequest(key, 1, 0, now_ns, deadline_ns=now_ns + limit_ns if limit_ns else 0)
            outcome.limited += limit_ns > 0
            gives_up_ns[key] = now_ns + (PATIENT_NS if crowd.patience_ns is None else crowd.patience_ns(random))
            try:
                scheduler.add(request, now_ns)
            except UnavailableError:
                outcome.refused += 1
                outcome.patient_refused += gives_up_ns[key] - now_ns >= PATIENT_NS
            else:
                heapq.heappush(hang_ups, (gives_up_ns[key] + NOTICED_NS, key))
                queued[key] = request
        for request in scheduler.expire(now_ns):
            outcome.refused += 1
            outcome.patient_refused += gives_up_ns[request.key] - request.arrival_ns >= PATIENT_NS
        while (batch := scheduler.take(now_ns)) is not None:
            compute_ns = int(crowd.execution_ms * MS * random.uniform(0.7, 1.3))
            running.update([request.key for request in batch.requests])
            heapq.heappush(completions, (now_ns + compute_ns, key, compute_ns, batch.requests))
    outcome.limit_ns = patience.limit_ns
    outcome.goodput = outcome.good * crowd.execution_ms * MS / crowd.max_batch_size / crowd.duration_ns
    return outcome
