"""The default scheduler: one request at a time, first come first served, never merged."""

import pytest

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError


def loaded(num_requests: int, num_instances: int, rows: int = 1) -> DefaultScheduler:
    scheduler = DefaultScheduler(max_total_queue=5)
    for instance in range(num_instances):
        scheduler.add_instance(instance)
    for key in range(num_requests):
        scheduler.add(QueuedRequest(key, rows, 0, 0), 0)
    return scheduler


def taken(scheduler: DefaultScheduler) -> list[tuple[int, list[int], int]]:
    batches = iter(lambda: scheduler.take(0), None)
    return [(batch.instance, [request.key for request in batch.requests], batch.rows) for batch in batches]


def test_requests_are_never_merged() -> None:
    scheduler = loaded(num_requests=4, num_instances=2, rows=3)
    assert taken(scheduler) == [(0, [0], 3), (1, [1], 3)]
    assert scheduler.pending == 2
    scheduler.complete(1, 0, 10**9)
    assert taken(scheduler) == [(1, [2], 3)]
    scheduler.complete(1, 0, 10**9)
    scheduler.complete(0, 0, 10**9)
    assert taken(scheduler) == [(1, [3], 3)]


def test_never_waits_for_time() -> None:
    scheduler = loaded(num_requests=2, num_instances=0)
    assert taken(scheduler) == []
    assert scheduler.next_deadline_ns() is None
    assert scheduler.expire(10**18) == []
    scheduler.add_instance(4)
    assert taken(scheduler) == [(4, [0], 1)]


def test_cancel_reaches_only_what_waits() -> None:
    scheduler = loaded(num_requests=3, num_instances=1)
    assert taken(scheduler) == [(0, [0], 1)]
    assert not scheduler.cancel(0)
    assert scheduler.cancel(1)
    assert not scheduler.cancel(1)
    scheduler.complete(0, 0, 10**9)
    assert taken(scheduler) == [(0, [2], 1)]


def test_a_removed_instance_gets_nothing_more() -> None:
    scheduler = loaded(num_requests=3, num_instances=2)
    assert taken(scheduler) == [(0, [0], 1), (1, [1], 1)]
    scheduler.remove_instance(0)
    scheduler.complete(0, 0, 10**9)
    assert taken(scheduler) == []
    scheduler.complete(1, 0, 10**9)
    assert taken(scheduler) == [(1, [2], 1)]


def test_the_servers_bound_holds() -> None:
    scheduler = loaded(num_requests=5, num_instances=0)
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        scheduler.add(QueuedRequest(9, 1, 0, 0), 0)
    assert [request.key for request in scheduler.drain()] == [0, 1, 2, 3, 4]
    assert scheduler.pending == 0
