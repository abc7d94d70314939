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
    assert [instances.take(), instances.take()] == [0, 1]
    instances.complete(1, 0, 10**9)
    instances.complete(0, 0, 10**9)
    assert [instances.take(), instances.take()] == [1, 0]


def test_none_idle_is_an_error_and_changes_nothing() -> None:
    instances = some(0)
    instances.take()
    with pytest.raises(IndexError):
        instances.take()
    assert (len(instances), len(instances.idle)) == (1, 0)


def test_an_instance_is_never_idle_twice() -> None:
    instances = some(0)
    instances.add(0)
    instances.complete(0, 0, 10**9)
    assert list(instances.idle) == [0]
    instances.take()
    instances.add(0)
    assert (len(instances), list(instances.idle)) == (1, [])


def test_a_removed_instance_does_not_come_back_by_completing() -> None:
    instances = some(0, 1, 2)
    instances.take()
    instances.remove(0)
    instances.remove(2)
    instances.remove(9)
    instances.complete(0, 0, 10**9)
    assert (len(instances), list(instances.idle)) == (1, [1])


def test_a_removed_instance_may_be_added_again() -> None:
    instances = some(0)
    instances.take()
    instances.remove(0)
    instances.add(0)
    assert list(instances.idle) == [0]


def proven(instances: Instances, instance: int, compute_ns: int) -> None:
    """Enough executions to know how long they take."""
    for _ in range(30):
        assert instances.take() == instance
        instances.complete(instance, 0, compute_ns)


def test_a_fast_instance_works_ahead_up_to_eight() -> None:
    instances = some(0)
    proven(instances, 0, 200_000)
    assert [instances.take_or_work_ahead(0) for _ in range(9)] == [0] * 8 + [None]
    for _ in range(7):
        instances.complete(0, 0, 0)
        assert not instances.idle
    instances.complete(0, 0, 0)
    assert list(instances.idle) == [0]


def test_fast_executions_go_to_idle_instances_first_and_then_to_the_one_with_the_fewest() -> None:
    instances = some(0)
    proven(instances, 0, 200_000)
    instances.add(1)
    assert [instances.take_or_work_ahead(0) for _ in range(6)] == [0, 1, 0, 1, 0, 1]


def test_tiny_executions_fill_one_instance_before_another_is_woken() -> None:
    instances = some(0)
    proven(instances, 0, 20_000)
    instances.add(1)
    assert [instances.take_or_work_ahead(0) for _ in range(17)] == [0] * 8 + [1] * 8 + [None]
    instances.complete(0, 0, 20_000)
    instances.complete(1, 0, 20_000)
    instances.complete(1, 0, 20_000)
    assert [instances.take_or_work_ahead(0) for _ in range(4)] == [0, 1, 1, None]


def test_an_instance_that_is_new_or_slow_does_not_work_ahead() -> None:
    instances = some(0)
    assert [instances.take_or_work_ahead(0), instances.take_or_work_ahead(0)] == [0, None]
    instances.complete(0, 0, 0)
    proven(instances, 0, 20_000)
    instances.take()
    instances.complete(0, 0, 10_000_000)
    assert [instances.take_or_work_ahead(0), instances.take_or_work_ahead(0)] == [0, None]


def test_an_instance_may_come_with_executions() -> None:
    instances = some(0)
    instances.add(1, 2)
    assert (len(instances), list(instances.idle)) == (2, [0])
    instances.complete(1, 0, 0)
    assert list(instances.idle) == [0]
    instances.complete(1, 0, 0)
    assert list(instances.idle) == [0, 1]


def test_without_instances_no_batch_runs() -> None:
    instances = some(0)
    proven(instances, 0, 20_000)
    instances.remove(0)
    assert instances.take_or_work_ahead(0) is None
