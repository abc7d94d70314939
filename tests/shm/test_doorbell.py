"""shm/doorbell.py: a bell is heard until it is cleared, wherever it is rung from."""

import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from shoal.shm.doorbell import Doorbell


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell.create()
    yield bell
    bell.close()


def is_heard(bell: Doorbell, timeout_s: float = 0) -> bool:
    return select.select([bell], [], [], timeout_s)[0] == [bell]


def test_a_new_bell_is_silent(bell: Doorbell) -> None:
    assert not is_heard(bell)
    assert os.get_inheritable(bell.fd) is False


def test_a_bell_is_heard_until_it_is_cleared(bell: Doorbell) -> None:
    bell.ring()
    assert is_heard(bell)
    assert is_heard(bell)
    bell.clear()
    assert not is_heard(bell)


def test_one_clear_silences_any_number_of_rings(bell: Doorbell) -> None:
    for _ in range(1000):
        bell.ring()
    bell.clear()
    assert not is_heard(bell)


def test_clearing_a_silent_bell_does_not_block_and_the_next_ring_is_heard(bell: Doorbell) -> None:
    bell.clear()
    bell.clear()
    bell.ring()
    assert is_heard(bell)


def test_a_ring_wakes_who_waits(bell: Doorbell) -> None:
    about_to_wait, heard = threading.Event(), []

    def wait() -> None:
        about_to_wait.set()
        heard.append(is_heard(bell, timeout_s=10))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert about_to_wait.wait(10)
    bell.ring()
    waiter.join(10)
    assert heard == [True]


def test_who_waits_for_edges_hears_each_ring_once_and_clears_nothing(bell: Doorbell) -> None:
    bell.ring()
    with select.epoll() as poller:
        poller.register(bell.fd, select.EPOLLIN | select.EPOLLET)
        assert poller.poll(0)  # rung before it was listened to
        for num_rings in (1, 3, 1):
            assert not poller.poll(0)
            for _ in range(num_rings):
                bell.ring()
            assert len(poller.poll(0)) == 1


def test_a_bell_whose_count_is_at_its_limit_still_rings(bell: Doorbell) -> None:
    with select.epoll() as poller:
        poller.register(bell.fd, select.EPOLLIN | select.EPOLLET)
        os.eventfd_write(bell.fd, 2**64 - 2)
        assert poller.poll(0)
        for _ in range(3):
            bell.ring()
            assert poller.poll(0)


def test_two_descriptors_of_one_bell_are_one_bell(bell: Doorbell) -> None:
    other = Doorbell(os.dup(bell.fd))
    other.ring()
    assert is_heard(bell)
    bell.clear()
    assert not is_heard(other)
    other.close()


def test_close_gives_the_descriptor_back(num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    bell = Doorbell.create()
    assert num_descriptors() == before + 1
    bell.close()
    assert num_descriptors() == before
    bell.close()  # once more does nothing: the number may be another file's by now
    assert bell.fd == -1


def test_a_bell_that_is_forgotten_gives_its_descriptor_back(num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    Doorbell.create()
    assert num_descriptors() == before
