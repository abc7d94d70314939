"""The queue under policies: the order of service, who expires when and how, and every bound."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from shoal.batcher.scheduling.policy_queue import PolicyQueue
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError

if TYPE_CHECKING:
    from _typeshed import TraceFunction

MS = 1_000_000


def request(key: int, priority: int = 0, arrival_ns: int = 100, timeout_us: int = 0) -> QueuedRequest:
    return QueuedRequest(key, 1, 0, arrival_ns, priority, timeout_us)


def queue(max_total_queue: int = 100, **batching: object) -> PolicyQueue:
    """With three levels, unless it says otherwise; most requests are of level 2."""
    return PolicyQueue.from_config({"priority_levels": 3, "default_priority_level": 2} | batching, max_total_queue)


def policy(**fields: object) -> dict[str, object]:
    return {"default_timeout_microseconds": 1000} | fields


def keys(requests: object) -> list[int]:
    return [each.key for each in requests]  # type: ignore[attr-defined]  # a queue, or a list of requests


def test_a_level_is_served_before_the_next_and_in_order_of_arrival() -> None:
    levels = queue()
    for key, priority in enumerate((3, 0, 1, 2, 4, 1)):  # 0 and 4, which there is not, mean the default
        levels.add(request(key, priority))
    assert keys(levels) == [2, 5, 1, 3, 4, 0]
    assert [levels.popleft().key for _ in range(6)] == [2, 5, 1, 3, 4, 0]
    assert (len(levels), levels.rows) == (0, 0)


def test_without_levels_priorities_mean_nothing() -> None:
    plain = queue(priority_levels=0, default_queue_policy=policy())
    for key, priority in enumerate((3, 0, 1)):
        plain.add(request(key, priority))
    assert keys(plain) == [0, 1, 2]


def test_the_delay_counts_from_the_oldest_request_not_the_first_served() -> None:
    levels = queue()
    levels.add(request(0, priority=3, arrival_ns=100))
    levels.add(request(1, priority=1, arrival_ns=200))
    assert levels.oldest_arrival_ns() == 100
    assert levels.cancel(0)
    assert levels.oldest_arrival_ns() == 200


def test_reject_takes_the_request_out_when_its_time_is_over_and_not_before() -> None:
    levels = queue(default_queue_policy=policy())
    levels.add(request(0, arrival_ns=100))
    levels.add(request(1, priority=1, arrival_ns=200))
    assert levels.next_expiry_ns() == 100 + MS
    assert levels.expire(99 + MS) == []
    assert keys(levels.expire(100 + MS)) == [0]
    assert (keys(levels), levels.rows, levels.next_expiry_ns()) == ([1], 1, 200 + MS)


def test_delay_lets_it_wait_behind_its_level_but_before_the_next() -> None:
    levels = queue(default_queue_policy=policy(timeout_action="DELAY"))
    levels.add(request(0, priority=1))
    levels.add(request(1, priority=3, arrival_ns=200))
    assert levels.expire(100 + MS) == []
    levels.add(request(2, priority=1, arrival_ns=300))
    assert keys(levels) == [2, 0, 1]
    assert levels.next_expiry_ns() == 200 + MS  # the late one expires no more
    assert levels.cancel(0)
    assert (keys(levels), levels.rows) == ([2, 1], 2)


def test_those_that_are_late_together_keep_their_order() -> None:
    levels = queue(default_queue_policy=policy(timeout_action="DELAY"))
    for key in (9, 3, 5):
        levels.add(request(key))
    assert levels.expire(100 + MS) == []
    assert keys(levels) == [9, 3, 5]


@pytest.mark.parametrize(
    ("fields", "timeout_us", "expiry_ns"),
    [
        ({"allow_timeout_override": True}, 400, 400_000),
        ({"allow_timeout_override": True}, 0, MS),
        ({"allow_timeout_override": True}, 2000, MS),  # it can only shorten
        ({"allow_timeout_override": True, "default_timeout_microseconds": 0}, 400, None),  # Triton's rule, too
        ({}, 400, MS),
    ],
)
def test_the_requests_own_timeout(fields: dict[str, object], timeout_us: int, expiry_ns: int | None) -> None:
    levels = queue(default_queue_policy=policy(**fields))
    levels.add(request(0, arrival_ns=0, timeout_us=timeout_us))
    assert levels.next_expiry_ns() == expiry_ns


def test_a_level_has_its_own_policy_or_the_default_one() -> None:
    own = {"1": policy(default_timeout_microseconds=5), "3": policy(default_timeout_microseconds=0, max_queue_size=1)}
    levels = queue(default_queue_policy=policy(), priority_queue_policy=own)
    for priority in (1, 2, 3):
        levels.add(request(priority, priority, arrival_ns=0))
    assert keys(levels.expire(5_000)) == [1]
    assert keys(levels.expire(MS)) == [2]
    assert levels.next_expiry_ns() is None
    with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
        levels.add(request(4, priority=3))
    assert keys(levels) == [3]


def test_max_queue_size_counts_who_is_late_too_and_its_own_level_only() -> None:
    levels = queue(default_queue_policy=policy(timeout_action="DELAY", max_queue_size=2))
    levels.add(request(0))
    levels.expire(100 + MS)
    levels.add(request(1))
    levels.add(request(2, priority=1))
    with pytest.raises(UnavailableError):
        levels.add(request(3))
    assert (keys(levels), levels.rows) == ([2, 1, 0], 3)


def test_a_flood_of_one_level_leaves_the_others_their_room() -> None:
    levels = queue(max_total_queue=2)
    for key in range(2):
        levels.add(request(key, priority=3))
    with pytest.raises(UnavailableError):
        levels.add(request(2, priority=3))
    levels.add(request(3, priority=1))
    with pytest.raises(UnavailableError):
        levels.add(request(4, priority=1), num_in_payloads=1)
    assert keys(levels) == [3, 0, 1]


def test_a_key_that_comes_back_has_a_time_of_its_own() -> None:
    levels = queue(default_queue_policy=policy())
    levels.add(request(0, arrival_ns=100))
    levels.cancel(0)
    assert levels.next_expiry_ns() is None
    levels.add(request(0, arrival_ns=200))
    assert levels.expire(100 + MS) == []
    assert keys(levels.expire(200 + MS)) == [0]


def test_the_times_of_those_that_have_left_do_not_gather() -> None:
    levels = queue(default_queue_policy=policy())
    for key in range(1000):
        levels.add(request(key, arrival_ns=key))
        levels.popleft()
    assert len(levels._deadlines) < 100


def test_drain_empties_it_in_order_of_arrival() -> None:
    levels = queue(default_queue_policy=policy())
    for key, priority in enumerate((3, 1)):
        levels.add(request(key, priority))
    assert keys(levels.drain()) == [0, 1]
    assert (len(levels), levels.rows, levels.next_expiry_ns(), keys(levels)) == (0, 0, None, [])


def test_levels_may_be_any_number_and_unused_ones_cost_nothing() -> None:
    many = queue(
        max_total_queue=1 << 20,
        priority_levels=2**63,
        default_priority_level=2**62,
        priority_queue_policy={str(2**40): policy(max_queue_size=1)},
    )
    order = [1, 64, 65, 1000, 2**40, 2**62, 2**63]
    for key, priority in enumerate(reversed(order)):
        many.add(request(key, priority))
    many.add(request(7))  # of the default level, behind another
    with pytest.raises(UnavailableError):
        many.add(request(8, 2**40))
    assert many.rows_before(request(8, 1000)) == 4
    assert [many.popleft().key for _ in range(8)] == [6, 5, 4, 3, 2, 1, 7, 0]
    for key in range(100_000):
        many.add(request(key, 10_000 + key))
        assert many.popleft().key == key
    assert sys.getsizeof(many._lines) < 200_000
    for key in range(3000):
        many.add(request(key, 3000 - key))
    assert [many.popleft().key for _ in range(3000)] == [*range(2999, -1, -1)]


def opcodes(call: Callable[[], object]) -> int:
    """How many bytecode instructions a call takes."""
    num_opcodes = 0

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction":
        nonlocal num_opcodes
        frame.f_trace_opcodes = True
        num_opcodes += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return num_opcodes


def test_a_request_costs_no_more_where_others_wait_in_thousands_of_levels() -> None:
    costs = []
    for num_waiting in (1, 4000):
        many = queue(max_total_queue=1 << 20, priority_levels=1 << 31)
        for key in range(num_waiting):
            many.add(request(key, 1000 + key))
        for key in range(100_000, 101_000):  # one after the other, each of a level of its own
            many.add(request(key, key))
            many.cancel(key)
        costs.append(opcodes(partial(many.add, request(num_waiting, 500))) + opcodes(many.popleft))
    assert costs[1] < costs[0] + 200


def test_refused_requests_leave_no_levels_behind() -> None:
    many = queue(max_total_queue=1, priority_levels=1 << 31)
    many.add(request(0))
    for key in range(1, 1000):
        with pytest.raises(UnavailableError):
            many.add(request(key, key), num_in_payloads=1)
    assert len(many._lines) == 2


def test_what_is_late_in_one_of_many_levels_waits_behind_its_own() -> None:
    many = queue(
        max_total_queue=1 << 20,
        priority_levels=10_000,
        default_priority_level=1,
        default_queue_policy=policy(timeout_action="DELAY"),
    )
    for key in range(3000):
        many.add(request(key, 5000 - key))
    assert many.expire(100 + MS) == []
    many.add(request(3000, 5000, arrival_ns=100 + MS))
    many.add(request(3001, 9000, arrival_ns=100 + MS))
    assert [many.popleft().key for _ in range(3002)] == [*range(2999, 0, -1), 3000, 0, 3001]
