"""The bell between the batcher and a process that is not ours."""

import fcntl
import os
import select

from shoal.shm.doorbell import Doorbell, GuestBell


def is_rung(bell: GuestBell) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


def test_each_end_rings_the_other() -> None:
    near, far = GuestBell.pair()
    far.ring()
    assert (is_rung(near), is_rung(far)) == (True, False)
    near.clear()
    assert not is_rung(near)
    near.ring()
    assert far.wait()
    assert not is_rung(far)
    near.clear()  # of nothing


def test_no_end_can_make_the_other_wait() -> None:
    near, far = GuestBell.pair()
    fcntl.fcntl(far.fd, fcntl.F_SETFL, 0)
    for _ in range(10_000):  # more than the socket takes
        far.ring()
        near.ring()
    near.clear()
    assert not is_rung(near)
    near.clear()
    near.ring()


def test_an_end_that_is_gone() -> None:
    near, far = GuestBell.pair()
    far.close()
    near.ring()
    near.clear()
    assert not near.wait()
    near, far = GuestBell.pair()
    near.hang_up()
    assert not far.wait()
    near.hang_up()


def test_a_doorbell_whose_count_was_run_up_has_been_rung() -> None:
    bell = Doorbell.create()
    os.eventfd_write(bell.fd, 2**64 - 2)
    bell.ring()
    bell.clear()
    bell.ring()
