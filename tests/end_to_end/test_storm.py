"""The short form of scripts/storm: the sums come out; how fast, it does not ask."""

import asyncio
from pathlib import Path

from tests.end_to_end.storm import Storm, footprint_at_rest, judge, storm_server, warm_up


def test_every_request_is_answered_once_and_rightly(tmp_path: Path) -> None:
    with storm_server(tmp_path) as server:
        storm = Storm(server, seed=7)
        before = warm_up(storm, server)
        # Each kind by itself, so that a failure says whose death it is, and then both at once.
        for victims, seconds in (
            (("batcher",), 2.5),
            (("worker",), 2.5),
            (("worker", "batcher"), 5.0),
            (("lane",), 2.5),
        ):
            phase = asyncio.run(storm.phase("+".join(victims), seconds, victims))
            assert judge(phase) == []
            assert phase.num_right > 0
            assert all(phase.kills[victim] for victim in victims)
            footprint_at_rest(server, before)
        assert server.stop() == 0
