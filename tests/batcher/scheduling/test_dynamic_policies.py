"""The dynamic batcher with queue policies, by example: which batches come of priorities and timeouts, and when."""

from typing import Any

from tests.batcher.scheduling.bench import D_US, Bench, D, busy

LEVELS: dict[str, Any] = {"priority_levels": 2, "default_priority_level": 2}


def test_a_batch_spans_levels_the_first_first() -> None:
    bench = busy(**LEVELS)
    bench.add(1, 1)
    bench.add(1, 1, priority=1)
    assert bench.take() == []
    assert bench.complete() == [[3, 4, 1, 2]]


def test_who_comes_later_overtakes_until_it_really_runs() -> None:
    bench = busy(max_batch_size=2, **LEVELS)
    bench.trickle(1, 1, 1)
    bench.add(1, priority=1)
    assert bench.complete() == [[4, 1]]
    assert bench.complete() == [[2, 3]]


def test_an_arrival_before_the_others_may_fill_a_preferred_size() -> None:
    bench = Bench(preferred=(2, 7), delay_us=D_US, **LEVELS)
    bench.add(3)
    assert bench.take() == []
    bench.add(2, priority=1)  # five rows do not, but those two do
    assert bench.take() == [[1]]


def test_the_delay_counts_from_the_oldest_of_any_level() -> None:
    bench = Bench(delay_us=D_US, **LEVELS)
    bench.add(1, at=0)
    bench.add(1, at=10, priority=1)
    assert bench.take(at=10) == []
    assert bench.deadline == D
    assert bench.take(at=D) == [[1, 0]]


def test_what_expires_is_known_though_no_instance_is_idle() -> None:
    bench = busy(policy={"default_timeout_microseconds": D_US})
    bench.add(1, at=5)
    assert bench.deadline == 5 + D
    assert [request.key for request in bench.scheduler.expire(5 + D)] == [1]
    assert bench.scheduler.pending == 0
    assert bench.complete(at=5 + D) == []


def test_the_nearer_of_expiry_and_delay_wakes_the_batcher() -> None:
    bench = Bench(delay_us=D_US, policy={"default_timeout_microseconds": 2 * D_US})
    bench.add(1)
    assert bench.deadline == D
    bench = Bench(delay_us=2 * D_US, policy={"default_timeout_microseconds": D_US})
    bench.add(1)
    assert bench.deadline == D
    assert [request.key for request in bench.scheduler.expire(D)] == [0]


def test_who_is_late_waits_for_the_others_of_its_level() -> None:
    bench = busy(max_batch_size=2, policy={"default_timeout_microseconds": D_US, "timeout_action": "DELAY"})
    bench.add(1, 1, at=0)
    bench.add(1, 1, at=D)
    assert bench.scheduler.expire(D) == []
    assert bench.complete(at=D) == [[3, 4]]
    assert bench.complete(at=D) == [[1, 2]]


def test_a_request_that_an_instance_died_with_expires_no_more() -> None:
    bench = busy(policy={"default_timeout_microseconds": D_US})
    bench.add(1)
    (died,) = bench.scheduler.drain()
    bench.scheduler.add_first(died)
    assert bench.scheduler.expire(2 * D) == []
    assert bench.complete(at=2 * D) == [[1]]


def test_a_model_that_does_not_batch_has_policies_too() -> None:
    bench = busy(max_batch_size=0, policy={"default_timeout_microseconds": D_US}, **LEVELS)
    bench.add(1, 1)
    bench.add(1, priority=1, at=D // 2)
    assert [request.key for request in bench.scheduler.expire(D)] == [1, 2]
    assert bench.complete(at=D) == [[3]]
