"""Requests that run alone: all of a deterministic model, or those with a shape key of their own, in every scheduler."""

from random import Random
from typing import Any

import pytest

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import Scheduler, from_config
from shoal.deterministic import ALONE_KEY
from tests.batcher.scheduling.bench import Bench

CONFIGS: dict[str, dict[str, Any]] = {
    "dynamic": {"dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 60_000_000}},
    "policies": {
        "dynamic_batching": {
            "priority_levels": 2,
            "default_priority_level": 1,
            "max_queue_delay_microseconds": 60_000_000,
        }
    },
    "goal": {"parameters": {"latency_target_ms": {"string_value": "1000"}}},
    "goal with policies": {
        "dynamic_batching": {"priority_levels": 2, "default_priority_level": 1},
        "parameters": {"latency_target_ms": {"string_value": "1000"}},
    },
}


def scheduler_of(name: str, *, deterministic: bool) -> Scheduler:
    config: dict[str, Any] = {"name": "m", "max_batch_size": 8, **CONFIGS[name]}
    if deterministic:
        config["parameters"] = {**config.get("parameters", {}), "deterministic": {"string_value": "true"}}
    return from_config(config, 1000)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_deterministic_models_requests_never_share_a_batch_nor_wait_for_others(name: str) -> None:
    scheduler = scheduler_of(name, deterministic=True)
    scheduler.add_instance(0)
    for key, rows in enumerate((1, 3, 8, 1, 1)):
        scheduler.add(QueuedRequest(key, rows, 0, 0, priority=1), 0)
    for key, rows in enumerate((1, 3, 8, 1, 1)):
        batch = scheduler.take(0)
        assert batch is not None
        assert ([request.key for request in batch.requests], batch.rows) == ([key], rows)
        assert scheduler.take(0) is None  # the only instance is busy
        scheduler.complete(0, 0, 10**9)
    assert scheduler.pending == 0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(20))
def test_in_any_schedule_a_request_of_its_own_key_shares_no_batch(name: str, seed: int) -> None:
    random = Random(seed)
    scheduler = scheduler_of(name, deterministic=False)
    for instance in range(2):
        scheduler.add_instance(instance)
    now_ns, served, running = 0, list[int](), list[int]()
    for key in range(200):
        now_ns += random.choice((0, 10_000, 2_000_000))
        is_alone = random.random() < 0.3
        shape_key = ALONE_KEY | key if is_alone else random.choice((0, 0, 7))
        scheduler.add(QueuedRequest(key, random.choice((1, 1, 2, 8)), shape_key, now_ns, random.choice((1, 2))), now_ns)
        if running and random.random() < 0.7:
            scheduler.complete(running.pop(0), now_ns, 1_000_000)
        while (batch := scheduler.take(now_ns)) is not None:
            running.append(batch.instance)
            served += [request.key for request in batch.requests]
            keys = {request.shape_key for request in batch.requests}
            assert len(keys) == 1
            assert max(keys) < ALONE_KEY or len(batch.requests) == 1
    while scheduler.pending:
        now_ns += 60_000_000_000
        for instance in running:
            scheduler.complete(instance, now_ns, 1_000_000)
        running.clear()
        while (batch := scheduler.take(now_ns)) is not None:
            running.append(batch.instance)
            served += [request.key for request in batch.requests]
    assert sorted(served) == list(range(200))


def test_a_request_alone_does_not_wait_for_others() -> None:
    bench = Bench(preferred=(4,), delay_us=60_000_000)
    bench.add(1, shape_key=ALONE_KEY | 1)
    assert bench.take() == [[0]]
    assert bench.scheduler.explain()["last_batches"] == [{"rows": 1, "reason": "alone"}]


def test_those_before_it_go_at_once_and_those_behind_it_wait_for_each_other() -> None:
    bench = Bench(preferred=(4,), delay_us=60_000_000, num_instances=3)
    bench.add(1, 1)
    assert bench.take() == []
    bench.add(1, shape_key=ALONE_KEY | 2)
    bench.add(1)
    assert bench.take() == [[0, 1], [2]]  # the last one waits for three more
    bench.add(1, 1, 1)
    assert bench.take() == [[3, 4, 5, 6]]
