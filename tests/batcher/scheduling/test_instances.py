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
    instances.complete(1)
    instances.complete(0)
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
    instances.complete(0)
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
    instances.complete(0)
    assert (len(instances), list(instances.idle)) == (1, [1])


def test_a_removed_instance_may_be_added_again() -> None:
    instances = some(0)
    instances.take()
    instances.remove(0)
    instances.add(0)
    assert list(instances.idle) == [0]
