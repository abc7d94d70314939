"""Guests and a batcher's death: how long they have to send its successor again what they hold."""

from typing import Any, cast

from shoal.supervisor.processes.guests import RESEND_S, Guests
from tests.supervisor.star_rig import StarRig


def test_guests_have_half_a_second_from_when_a_successor_serves(rig: StarRig) -> None:
    guests = Guests(rig.star, *cast(Any, (None, None)))
    rig.client_a.is_guest = True
    for _ in range(2):  # the first one dies, too, before that time is over
        rig.star.leave_batcher(rig.batcher.member)
        rig.batcher = rig.start()
        rig.star.join_batcher(rig.batcher.member)
        rig.loop.start(guests.disconnect_late(rig.batcher.member, rig.star.introduce()))
        rig.clock.pass_time(1.0)  # it does not serve yet
        rig.acknowledge(rig.batcher)
        rig.clock.pass_time(RESEND_S - 0.1)
    assert rig.a.member.is_open
    rig.clock.pass_time(0.2)
    assert not rig.a.member.is_open
    assert rig.b.member.is_open
