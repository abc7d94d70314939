"""Which instances are idle: the longest idle first, and none twice."""

import pytest

from shoal.batcher.scheduling.instances import Instances


def some(*numbers: int) -> Instances:
    instances = Instances()
    for number in numbers:
        instances.add(number)
    return instances


def test_the_longest_idle_is_taken_first() -> None:
    instances = some(0, 1)
    assert [instances.take(0), instances.take(0)] == [0, 1]
    instances.complete(1, 10**9)
    instances.complete(0, 10**9)
    assert [instances.take(0), instances.take(0)] == [1, 0]


def test_none_idle_is_an_error_and_changes_nothing() -> None:
    instances = some(0)
    instances.take(0)
    with pytest.raises(IndexError):
        instances.take(0)
    assert (len(instances), len(instances.idle)) == (1, 0)


def test_an_instance_is_never_idle_twice() -> None:
    instances = some(0)
    instances.add(0)
    instances.complete(0, 10**9)
    assert list(instances.idle) == [0]
    instances.take(0)
    instances.add(0)
    assert (len(instances), list(instances.idle)) == (1, [])


def test_a_removed_instance_does_not_come_back_by_completing() -> None:
    instances = some(0, 1, 2)
    instances.take(0)
    instances.remove(0)
    instances.remove(2)
    instances.remove(9)
    instances.complete(0, 10**9)
    assert (len(instances), list(instances.idle)) == (1, [1])


def test_a_removed_instance_may_be_added_again() -> None:
    instances = some(0)
    instances.take(0)
    instances.remove(0)
    instances.add(0)
    assert list(instances.idle) == [0]


def proven_fast(instances: Instances, instance: int) -> None:
    """Six executions of no time at all."""
    for _ in range(6):
        assert instances.take(0) == instance
        instances.complete(instance, 0)


def test_a_fast_instance_works_ahead_up_to_eight() -> None:
    instances = some(0)
    proven_fast(instances, 0)
    assert instances.take(0) == 0
    assert [instances.take_ahead() for _ in range(8)] == [0] * 7 + [None]
    for _ in range(7):
        instances.complete(0, 0)
        assert not instances.idle
    instances.complete(0, 0)
    assert list(instances.idle) == [0]


def test_the_instance_with_the_fewest_works_ahead() -> None:
    instances = some(0)
    proven_fast(instances, 0)
    instances.add(1)
    assert [instances.take(0), instances.take(0)] == [0, 1]
    assert [instances.take_ahead() for _ in range(4)] == [0, 1, 0, 1]


def test_an_instance_that_is_new_or_slow_does_not_work_ahead() -> None:
    instances = some(0)
    instances.take(0)
    assert instances.take_ahead() is None
    instances.complete(0, 0)
    proven_fast(instances, 0)
    instances.take(0)
    instances.complete(0, 10_000_000)
    instances.take(0)
    assert instances.take_ahead() is None


def test_nobody_works_ahead_where_nobody_works() -> None:
    instances = some(0)
    proven_fast(instances, 0)
    instances.remove(0)
    assert instances.take_ahead() is None
