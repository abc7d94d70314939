"""Deadlines in front of any scheduler: the promises over generated schedules, and each rule by itself."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.admission import CAUTION, LateError
from shoal.batcher.scheduling.deadlines import DeadlineScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from tests.batcher.scheduling import punctual
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds

MS = 1_000_000
#: Of the seeded schedules, as many as take a second or two; the module can be asked for more.
NUM_SEEDED = 2000
PLAIN: dict[str, object] = {"max_batch_size": 0}


def request(key: int, deadline_ms: float = 0, arrival_ms: float = 0, priority: int = 0) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, int(arrival_ms * MS), priority, 0, int(deadline_ms * MS))


def practised(config: dict[str, object]) -> DeadlineScheduler:
    """One whose instance has executed requests for 10 ms each, and is at one since 100 ms."""
    scheduler = DeadlineScheduler(from_config(config, 100))
    scheduler.add_instance(0)
    for number in range(10):
        scheduler.add(request(-1 - number), number * 10 * MS)
        assert scheduler.take(number * 10 * MS) is not None
        scheduler.complete(0, (number + 1) * 10 * MS, 10 * MS)
    scheduler.add(request(100), 100 * MS)
    assert scheduler.take(100 * MS) is not None
    return scheduler


def keys(requests: Sequence[QueuedRequest]) -> list[int]:
    return [each.key for each in requests]


def test_seeded_schedules_keep_the_promises_and_everything_comes_to_pass() -> None:
    told = run_seeds(punctual.run_any, range(FIRST, FIRST + NUM_SEEDED))
    assert set(told) == {"too late", "full", "left"}


@settings(max_examples=100)
@given(st.binary(min_size=22, max_size=82))
def test_any_schedule_keeps_the_promises(some_bytes: bytes) -> None:
    punctual.run_any(numbers_of(some_bytes), Told())


@pytest.mark.parametrize("config", [PLAIN, {"max_batch_size": 4, "dynamic_batching": {}}])
def test_a_queued_request_leaves_at_its_deadline_whatever_the_instances_do(config: dict[str, object]) -> None:
    scheduler = DeadlineScheduler(from_config(config, 100))
    for key, deadline_ms in enumerate((0, 7, 5)):
        scheduler.add(request(key, deadline_ms), 0)
    assert scheduler.next_deadline_ns() == 5 * MS
    assert keys(scheduler.expire(5 * MS - 1)) == []
    assert keys(scheduler.expire(5 * MS)) == [2]
    assert keys(scheduler.expire(9 * MS)) == [1]
    assert (scheduler.pending, scheduler.next_deadline_ns()) == (1, None)


def test_who_would_be_late_is_refused_and_told_how_late() -> None:
    scheduler = practised(PLAIN)
    for key in range(5):
        scheduler.add(request(key), 100 * MS)
    with pytest.raises(LateError) as caught:
        scheduler.add(request(9, deadline_ms=170), 100 * MS)
    assert caught.value.needed_ns == pytest.approx((60 * CAUTION + 10) * MS)
    assert caught.value.left_ns == 70 * MS
    scheduler.add(request(9, deadline_ms=190), 100 * MS)
    assert scheduler.pending == 6


def test_who_has_become_late_leaves_while_it_could_still_have_been_executed() -> None:
    scheduler = practised(PLAIN)
    scheduler.add(request(0, deadline_ms=150), 100 * MS)
    assert scheduler.next_deadline_ns() == 140 * MS
    assert keys(scheduler.expire(140 * MS)) == [0]


def test_a_late_request_takes_its_chance_with_an_idle_instance() -> None:
    scheduler = practised(PLAIN)
    scheduler.complete(0, 110 * MS, 10 * MS)
    scheduler.add(request(0, deadline_ms=111), 110 * MS)
    assert scheduler.take(110 * MS) is not None
    with pytest.raises(LateError):
        scheduler.add(request(1, deadline_ms=111), 110 * MS)


def test_who_waits_for_the_next_batch_costs_no_time() -> None:
    batching = practised({"max_batch_size": 8, "dynamic_batching": {}})
    deadline_ms = 100 + CAUTION * 10 + 10.1
    for key in range(8):
        batching.add(request(key, deadline_ms), 100 * MS)
    with pytest.raises(LateError):
        batching.add(request(8, deadline_ms), 100 * MS)


LEVELS = {"priority_levels": 2, "default_priority_level": 2}
TIMEOUT = {"default_timeout_microseconds": 30_000}


def test_a_timeout_in_the_queue_is_about_the_wait_alone() -> None:
    scheduler = practised({"max_batch_size": 1, "dynamic_batching": {"default_queue_policy": TIMEOUT}})
    for key in range(2):
        scheduler.add(request(key, arrival_ms=100), 100 * MS)
    with pytest.raises(LateError) as caught:
        scheduler.add(request(2, arrival_ms=100), 100 * MS)
    assert caught.value.needed_ns == pytest.approx(30 * CAUTION * MS)
    assert caught.value.left_ns == 30 * MS
    assert keys(scheduler.expire(130 * MS)) == [0, 1]


def test_who_is_to_be_late_by_policy_is_not_refused() -> None:
    policy = TIMEOUT | {"timeout_action": "DELAY"}
    scheduler = practised({"max_batch_size": 1, "dynamic_batching": {"default_queue_policy": policy}})
    for key in range(9):
        scheduler.add(request(key, arrival_ms=100), 100 * MS)
    assert scheduler.pending == 9


def test_requests_of_lower_levels_make_no_request_late() -> None:
    scheduler = practised({"max_batch_size": 1, "dynamic_batching": LEVELS})
    for key in range(20):
        scheduler.add(request(key), 100 * MS)
    scheduler.add(request(20, deadline_ms=150, priority=1), 100 * MS)
    with pytest.raises(LateError):
        scheduler.add(request(21, deadline_ms=150), 100 * MS)


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_part_of_a_sequence_is_not_refused_but_leaves_at_its_deadline(is_limited: bool) -> None:
    batching = {"max_sequence_idle_microseconds": 10**9, "iterative_sequence": False}
    config: dict[str, Any] = {"max_batch_size": 1, "sequence_batching": batching}
    inner = from_config(config, 100)
    scheduler = DeadlineScheduler(RateLimitedScheduler(inner, RateLimiter()) if is_limited else inner)
    scheduler.add_instance(0)
    for number in range(6):
        scheduler.add(request(-1 - number).in_sequence(7, int(not number)), number * 10 * MS)
        assert scheduler.take(number * 10 * MS) is not None
        if number < 5:
            scheduler.complete(0, (number + 1) * 10 * MS, 10 * MS)
    scheduler.add(request(1, deadline_ms=51).in_sequence(7, 0), 50 * MS)
    assert keys(scheduler.expire(51 * MS)) == [1]


def test_a_request_whose_instance_died_has_its_deadline_again() -> None:
    scheduler = DeadlineScheduler(from_config(PLAIN, 100))
    scheduler.add_instance(0)
    mine = request(0, deadline_ms=50)
    scheduler.add(mine, 0)
    assert scheduler.take(0) is not None
    assert scheduler.next_deadline_ns() is None  # what an instance was given is executed
    scheduler.remove_instance(0)
    scheduler.add_first(mine)
    assert scheduler.next_deadline_ns() == 50 * MS
    assert scheduler.expire(50 * MS) == [mine]


def test_deadlines_of_those_that_have_left_do_not_gather() -> None:
    scheduler = DeadlineScheduler(from_config(PLAIN, 100))
    for key in range(1000):
        scheduler.add(request(key, deadline_ms=1000 + key), 0)
        assert scheduler.cancel(key)
    assert len(scheduler._deadlines) < 100
