"""How long a process spins before it sleeps: the policy on a fake clock, and the waits for real doorbells."""

import os
import select
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shm.spinning import ENOUGH, FIRST_NS, LONG_YIELD_NS, MOST_PAUSE, PAUSE, SpinningPoller, SpinPolicy

LONGEST_NS = 100_000
MS = 1_000_000


def test_a_new_process_sleeps_at_once() -> None:
    assert SpinPolicy(LONGEST_NS).spin_ns(0) == 0


def test_short_waits_double_the_spin_up_to_the_longest() -> None:
    policy, spins = SpinPolicy(LONGEST_NS), []
    for _ in range(6):
        policy.note_wait(60_000)
        spins.append(policy.spin_ns(0))
    assert spins == [12_500, 25_000, 50_000, 100_000, 100_000, 100_000]


def test_a_wait_that_slept_is_short_up_to_twice_the_longest_spin() -> None:
    policy = SpinPolicy(LONGEST_NS)
    policy.note_wait(200_000)
    assert policy.spin_ns(0) == FIRST_NS
    policy.note_wait(200_001)
    assert policy.spin_ns(0) == 0


def test_the_longest_spin_ends_with_the_first_wait_that_it_did_not_meet() -> None:
    policy = spinning_policy()
    policy.note_wait(100_000)
    assert policy.spin_ns(0) == LONGEST_NS
    policy.note_wait(100_001)
    assert policy.spin_ns(0) == 0


def test_after_a_long_yield_the_process_sleeps_for_a_multiple_of_its_time() -> None:
    policy = spinning_policy()
    for _ in range(ENOUGH):
        policy.note_met()
    policy.note_long_yield(3 * MS, 10 * MS)
    policy.note_wait(1000)
    resumes_ns = 10 * MS + PAUSE * 3 * MS
    assert policy.spin_ns(resumes_ns - 1) == 0
    assert policy.spin_ns(resumes_ns) == FIRST_NS


def test_pauses_double_while_hardly_any_spin_meets_an_event() -> None:
    policy, now_ns, pauses = SpinPolicy(LONGEST_NS), 0, []
    for _ in range(8):
        policy.note_wait(1000)
        policy.note_long_yield(MS, now_ns)
        policy.note_wait(1000)
        begin_ns = now_ns
        while not policy.spin_ns(now_ns):
            now_ns += MS
        pauses.append((now_ns - begin_ns) // MS)
    assert pauses == [200, 400, 800, 1600, 3200, 3200, 3200, 3200]
    assert pauses[-1] == MOST_PAUSE


@given(waits=st.lists(st.tuples(st.integers(0, 300_000), st.integers(LONG_YIELD_NS, 20 * MS) | st.none()), max_size=50))
def test_long_yields_take_at_most_one_part_in_pause_of_the_time(waits: list[tuple[int, int | None]]) -> None:
    policy, now_ns, lost = SpinPolicy(LONGEST_NS), 0, list[tuple[int, int]]()
    for waited_ns, yielded_ns in waits:
        if policy.spin_ns(now_ns) and yielded_ns is not None:
            if lost:
                before_ns, before_lost_ns = lost[-1]
                assert now_ns - before_ns >= PAUSE * before_lost_ns
            now_ns += yielded_ns
            lost.append((now_ns, yielded_ns))
            policy.note_long_yield(yielded_ns, now_ns)
        elif waited_ns < policy.spin_ns(now_ns):
            now_ns += waited_ns
            policy.note_met()
        else:
            now_ns += waited_ns
            policy.note_wait(waited_ns)
        assert policy.spin_ns(now_ns) <= LONGEST_NS


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def poller(bell: int) -> Iterator[select.epoll]:
    with select.epoll() as made:
        made.register(bell, select.EPOLLIN | select.EPOLLET)
        yield made


class Clock:
    """A clock that a yield moves on, by the next of the given times; `on_yield` is called then."""

    def __init__(self, *yields_ns: int, on_yield: Callable[[int], None] = lambda _count: None) -> None:
        self.now_ns, self.num_yields = 0, 0
        self._yields_ns, self._on_yield = iter(yields_ns), on_yield

    def __call__(self) -> int:
        return self.now_ns

    def yield_core(self) -> None:
        self.now_ns += next(self._yields_ns)
        self.num_yields += 1
        self._on_yield(self.num_yields)


def test_a_bell_that_rings_during_the_spin_ends_it(bell: int, poller: select.epoll) -> None:
    clock = Clock(*[1000] * 5, on_yield=lambda count: os.eventfd_write(bell, 1) if count == 3 else None)
    spinning = SpinningPoller(poller, LONGEST_NS, clock, clock.yield_core)
    assert spinning.poll(0, 2) == []  # a wait of no time: from now on it spins
    assert spinning.poll(0, 2) == [(bell, select.EPOLLIN)]
    assert clock.num_yields == 3


def test_a_spin_without_an_event_ends_with_the_wait_of_epoll(bell: int, poller: select.epoll) -> None:
    clock = Clock(*[5000] * 3, on_yield=lambda count: os.eventfd_write(bell, 1) if count == 3 else None)
    spinning = SpinningPoller(poller, LONGEST_NS, clock, clock.yield_core)
    spinning.poll(0, 2)
    assert spinning.poll(60, 2) == [(bell, select.EPOLLIN)]  # after 15 of 12.5 µs, by the wait that would have slept
    assert clock.num_yields == 3


def test_a_yield_that_takes_long_ends_the_spin_and_those_of_the_next_waits(bell: int, poller: select.epoll) -> None:
    clock = Clock(3 * MS, on_yield=lambda _count: os.eventfd_write(bell, 1))
    spinning = SpinningPoller(poller, LONGEST_NS, clock, clock.yield_core)
    spinning.poll(0, 2)
    assert spinning.poll(60, 2) == [(bell, select.EPOLLIN)]
    for _ in range(5):
        assert spinning.poll(0, 2) == []
    assert clock.num_yields == 1


def spinning_policy() -> SpinPolicy:
    policy = SpinPolicy(LONGEST_NS)
    for _ in range(4):
        policy.note_wait(0)
    assert policy.spin_ns(0) == LONGEST_NS
    return policy
