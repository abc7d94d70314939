"""A short storm of the deaths that take most to survive, kind by kind: the sums come out; how fast, it does not ask."""

import asyncio
from functools import partial
from pathlib import Path

from tests.end_to_end.server import DEADLINE_S
from tests.reliability.storm import (
    CONNECTIONS,
    KILLED,
    STOPPED,
    Blow,
    Phase,
    Storm,
    footprint_at_rest,
    judge,
    storm_server,
    warm_up,
)

BATCHER: Blow = ("batcher", KILLED)
WORKER: Blow = ("worker", KILLED)


def is_survived(phase: Phase, num_blows: int) -> bool:
    """So many blows have fallen, and there are as many right answers as connections for each."""
    return phase.blows.total() >= num_blows and phase.num_right >= num_blows * CONNECTIONS


def test_every_request_is_answered_once_and_rightly(tmp_path: Path) -> None:
    with storm_server(tmp_path) as server:
        storm = Storm(server, seed=7)
        before = warm_up(storm, server)
        # Each kind by itself, so that a failure says whose death it is, and then both at once.
        for blows, number in (((BATCHER,), 5), ((WORKER,), 5), ((WORKER, BATCHER), 12), ((("lane", STOPPED),), 1)):
            phase = Phase(f"{blows}")
            is_over = partial(is_survived, phase, number)
            asyncio.run(asyncio.wait_for(storm.phase(phase, is_over, blows), DEADLINE_S))
            assert judge(phase) == []
            assert all(phase.blows[blow] for blow in blows)
            footprint_at_rest(server, before)
        assert server.stop() == 0
