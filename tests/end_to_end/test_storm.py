"""The short form of scripts/storm: the sums come out; how fast, it does not ask."""

import asyncio
from functools import partial
from pathlib import Path

from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.storm import CONNECTIONS, Phase, Storm, footprint_at_rest, judge, storm_server, warm_up


def is_survived(phase: Phase, num_kills: int) -> bool:
    """So many have been killed, and there are as many right answers as connections for each."""
    return phase.kills.total() >= num_kills and phase.num_right >= num_kills * CONNECTIONS


def test_every_request_is_answered_once_and_rightly(tmp_path: Path) -> None:
    with storm_server(tmp_path) as server:
        storm = Storm(server, seed=7)
        before = warm_up(storm, server)
        # Each kind by itself, so that a failure says whose death it is, and then both at once.
        for victims, num_kills in ((("batcher",), 5), (("worker",), 5), (("worker", "batcher"), 12), (("lane",), 1)):
            phase = Phase("+".join(victims))
            is_over = partial(is_survived, phase, num_kills)
            asyncio.run(asyncio.wait_for(storm.phase(phase, is_over, victims), DEADLINE_S))
            assert judge(phase) == []
            assert all(phase.kills[victim] for victim in victims)
            footprint_at_rest(server, before)
        assert server.stop() == 0
