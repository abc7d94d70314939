"""The short form of scripts/storm: the sums come out; how fast, it does not ask."""

import asyncio
from pathlib import Path

from tests.end_to_end.server import serving
from tests.end_to_end.storm import Storm, footprint_at_rest, judge, write_models


def test_every_request_is_answered_once_and_rightly(tmp_path: Path) -> None:
    with serving(write_models(tmp_path)) as server:
        storm = Storm(server, seed=7)
        asyncio.run(storm.phase("warm-up", 0.5, ()))
        before = footprint_at_rest(server)
        # Each kind by itself, so that a failure says whose death it is, and then both at once.
        for victims, seconds in ((("batcher",), 2.5), (("worker",), 2.5), (("worker", "batcher"), 5.0)):
            phase = asyncio.run(storm.phase("+".join(victims), seconds, victims))
            assert judge(phase) == []
            assert phase.num_right > 0
            assert all(phase.kills[victim] for victim in victims)
            footprint_at_rest(server, before)
        assert server.stop() == 0
