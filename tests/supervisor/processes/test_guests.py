"""Guests and a batcher's death: how long they have to send its successor again what they hold."""

from typing import Any, cast

from shoal.supervisor.processes.guests import WORD_S, Guests
from tests.supervisor.star_rig import OPTIONS, Sky


def test_guests_have_half_a_second_from_when_a_successor_serves(sky: Sky) -> None:
    guests = Guests(sky.loop, sky.star, OPTIONS, *cast(Any, (None, None, None)))
    sky.client_a.is_guest = True
    for _ in range(2):  # the first one dies, too, before that time is over
        sky.star.leave_batcher(sky.batcher.member)
        sky.batcher = sky.start()
        sky.star.join_batcher(sky.batcher.member)
        sky.loop.start(guests.await_word(sky.batcher.member, sky.star.introduce()))
        sky.clock.pass_time(1.0)  # it does not serve yet
        sky.acknowledge(sky.batcher)
        sky.clock.pass_time(WORD_S - 0.1)
    assert sky.a.member.is_open
    sky.clock.pass_time(0.2)
    assert not sky.a.member.is_open
    assert sky.b.member.is_open
