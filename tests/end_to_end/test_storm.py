"""The short form of scripts/storm: the sums come out; how fast, it does not ask."""

import asyncio
from pathlib import Path

import pytest

from tests.end_to_end.server import serving
from tests.end_to_end.storm import Storm, footprint_at_rest, judge, write_model


@pytest.mark.parametrize("victims", [("batcher",), ("worker",), ("worker", "batcher")], ids="+".join)
def test_every_request_is_answered_once_and_rightly(tmp_path: Path, victims: tuple[str, ...]) -> None:
    with serving(write_model(tmp_path)) as server:
        storm = Storm(server, seed=7)
        asyncio.run(storm.phase("warm-up", 0.5, ()))
        before = footprint_at_rest(server)
        phase = asyncio.run(storm.phase("storm", 5.0, victims))
        assert judge(phase) == []
        assert phase.num_right > 0
        assert all(phase.kills[victim] for victim in victims)
        footprint_at_rest(server, before)
        assert server.stop() == 0
