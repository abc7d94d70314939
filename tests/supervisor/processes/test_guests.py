"""Guests and a batcher's death: how long they have to send its successor again what they hold."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from shoal.supervisor.processes.guests import WORD_S, Guests
from tests.supervisor.sky import OPTIONS, Sky


def test_guests_have_half_a_second_from_when_a_successor_serves(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(sky.loop, sky.star, OPTIONS, *cast(Any, (None, None, None)))
    later: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(sky.loop, "call_after", lambda delay_s, then: later.append((delay_s, then)))
    sky.client_a.is_guest = True
    for num_served in range(2):  # the first one dies, too, before that time is over
        sky.star.leave_batcher(sky.batcher.member)
        sky.batcher = sky.start()
        sky.star.join_batcher(sky.batcher.member)
        sky.star.introduce(guests.await_word)
        assert len(later) == num_served
        sky.acknowledge(sky.batcher)
    (first_s, first), (second_s, second) = later
    assert first_s == second_s == WORD_S
    first()
    assert sky.a.member.is_open
    second()
    assert not sky.a.member.is_open
    assert sky.b.member.is_open
