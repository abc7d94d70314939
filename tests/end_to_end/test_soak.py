"""The short form of scripts/soak: every kind of request has its answer, and nothing is left of it."""

import asyncio
from pathlib import Path

from tests.end_to_end.server import footprint, imbalances, serving
from tests.end_to_end.soak import FLAGS, Soak, at_rest, write_models


def test_nothing_is_left_of_mixed_traffic(tmp_path: Path) -> None:
    with serving(write_models(tmp_path), *FLAGS) as server:
        soak = Soak(server, seed=7)
        asyncio.run(soak.run(4.0))
        before = at_rest(server)
        asyncio.run(soak.run(6.0))
        assert soak.faults == []
        assert {"right", "oversized", "exception", "exit", "stream", "left a stream", "left"} <= set(soak.counts)
        server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == before, before)
        assert server.stop() == 0
