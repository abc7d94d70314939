"""Descriptors: who is refused before there are too few, and in which words."""

import os
import resource
from collections.abc import Iterator

import pytest

from shoal.errors import UnavailableError
from shoal.open_files import num_open
from shoal.supervisor import descriptors
from shoal.supervisor.descriptors import Descriptors, raise_limit


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
    coming_up = 0
    budget = Descriptors(lambda: coming_up, lambda: 100, lambda: 100 + 48 + 50)
    budget.admit_instances("m", 5)
    coming_up = 2
    budget.admit_instances("m", 3)
    with pytest.raises(UnavailableError) as refused:
        budget.admit_instances("m", 4)
    assert str(refused.value) == (
        "model 'm' cannot have 4 more instances: each takes 10 file descriptors of the server's main process, which "
        "has 100 open, 2 others that are starting need theirs, keeps 48 in reserve and may have 198. Raise the limit "
        "of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"
    )
    coming_up = 5
    with pytest.raises(UnavailableError, match="cannot have 1 more instance: "):
        budget.admit_instances("m", 1)
    coming_up = 9
    budget.admit_instances("m", 0)  # fewer, or as many


def test_guests_leave_the_reserve_and_what_dead_instances_will_take() -> None:
    Descriptors(lambda: 0, lambda: 100, lambda: 153).check_guest()
    with pytest.raises(UnavailableError, match="no more clients are taken"):
        Descriptors(lambda: 0, lambda: 101, lambda: 153).check_guest()
    Descriptors(lambda: 2, lambda: 80, lambda: 153).check_guest()
    with pytest.raises(UnavailableError, match="no more clients are taken"):
        Descriptors(lambda: 2, lambda: 81, lambda: 153).check_guest()


def test_payloads_leave_the_reserve_and_what_dead_instances_will_take() -> None:
    assert not Descriptors(lambda: 0, lambda: 100, lambda: 150).is_scarce()
    assert Descriptors(lambda: 0, lambda: 101, lambda: 150).is_scarce()
    assert not Descriptors(lambda: 2, lambda: 80, lambda: 150).is_scarce()
    assert Descriptors(lambda: 2, lambda: 81, lambda: 150).is_scarce()


def test_the_log_says_once_a_minute_what_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    scarce = Descriptors(lambda: 0, lambda: 110, lambda: 150, lambda: now_s)
    warned = []
    for now_s in (5.0, 6.0, 64.9, 65.0, 66.0):  # noqa: B007 - it is the clock
        assert scarce.is_scarce()
        warned.append(len(caplog.messages))
    assert warned == [1, 1, 1, 2, 2]
    assert caplog.messages[0] == (
        "the server's main process has 110 file descriptors open and may have 150: requests and results that are too "
        "large for a slab are refused, so that instances can start again. Raise the limit of open files: LimitNOFILE= "
        "of the systemd unit, --ulimit nofile of a container, or ulimit -n"
    )


@pytest.mark.usefixtures("no_garbage")
def test_numbers_that_were_freed_below_the_reserve_are_no_room_for_payloads(limits: tuple[int, int]) -> None:
    """A worker that is started again takes a number in the reserve, and leaves a lower one free."""
    held = [os.dup(0) for _ in range(60)]
    lowest = held[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open() + descriptors.RESERVE + 2, limits[1]))
    assert not Descriptors().is_scarce()
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open() + descriptors.RESERVE + 1, limits[1]))
    assert Descriptors().is_scarce()
    for fd in held[1:]:
        os.close(fd)
