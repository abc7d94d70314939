"""The short form of the soak: every kind of request has its answer, and nothing is left of it."""

import asyncio
from functools import partial
from pathlib import Path

from tests.end_to_end.server import DEADLINE_S, footprint, imbalances, serving_to_the_end
from tests.reliability.soak import FLAGS, Soak, at_rest, write_models

#: All that a soak counts and that is right.
KINDS = ("right", "oversized", "exception", "exit", "stream", "left a stream", "left")


def test_nothing_is_left_of_mixed_traffic(tmp_path: Path) -> None:
    with serving_to_the_end(write_models(tmp_path), *FLAGS) as server:
        soak = Soak(server, seed=7, exit_every_s=1.0)

        def has_done_everything(times: int) -> bool:
            return all(soak.counts[kind] >= times for kind in KINDS) or bool(soak.faults)

        asyncio.run(asyncio.wait_for(soak.run(partial(has_done_everything, 1)), DEADLINE_S))
        before = at_rest(server)
        asyncio.run(asyncio.wait_for(soak.run(partial(has_done_everything, 3)), DEADLINE_S))
        assert soak.faults == []
        server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == before, before)
