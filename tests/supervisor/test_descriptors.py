"""Descriptors: who is refused before there are too few, and in which words."""

import os
import resource
from collections.abc import Iterator

import pytest

from shoal.errors import UnavailableError
from shoal.supervisor import descriptors
from shoal.supervisor.descriptors import Descriptors, is_scarce, num_open, raise_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_as_far_as_the_system_allows(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)


def test_instances_fit_beside_the_reserve_and_those_that_are_starting() -> None:
    budget = Descriptors(lambda: 100, lambda: 100 + 48 + 50)
    budget.admit_instances("m", 5, 0)
    budget.admit_instances("m", 3, 2)
    budget.admit_instances("m", 0, 9)  # fewer, or the same
    with pytest.raises(UnavailableError) as refused:
        budget.admit_instances("m", 4, 2)
    assert str(refused.value) == (
        "model 'm' cannot have 4 more instances: each takes 10 file descriptors of the server's main process, which "
        "has 100 open, 2 others that are starting need theirs, keeps 48 in reserve and may have 198. Raise the limit "
        "of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"
    )
    with pytest.raises(UnavailableError, match="cannot have 1 more instance: "):
        budget.admit_instances("m", 1, 5)


def test_guests_leave_the_reserve() -> None:
    Descriptors(lambda: 100, lambda: 153).check_guest()
    with pytest.raises(UnavailableError, match="no more clients are taken"):
        Descriptors(lambda: 101, lambda: 153).check_guest()


@pytest.mark.usefixtures("no_garbage")
def test_what_is_open_is_counted(limits: tuple[int, int]) -> None:
    before = num_open()
    ends = os.pipe()
    assert num_open() == before + 2
    for fd in ends:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    assert num_open() == 3  # none is left to find it out


def test_the_reserve_is_scarce(limits: tuple[int, int]) -> None:
    free = os.dup(0)
    os.close(free)
    for limit, expected in [(free + descriptors.RESERVE, True), (free + descriptors.RESERVE + 1, False), (3, True)]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
        assert is_scarce() is expected
