"""The short form of grpc_streams: two hundred streams, no answer crossed, nothing left of those that were left."""

import asyncio
import queue
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.end_to_end.grpc_streams import PATH, Streams, request
from tests.end_to_end.server import DEADLINE_S, footprint, imbalances, serving
from tests.reliability.soak import FLAGS, at_rest, write_models

#: All that a place of a stream may do.
KINDS = ("ordinary", "decoupled", "mixed", "leave", "leave_at_once")


def test_two_hundred_streams_left_at_random(tmp_path: Path) -> None:
    with serving(write_models(tmp_path), *FLAGS, "--grpc-port=0") as server:
        streams = Streams(server, num_streams=200, seed=7)

        def has_done_everything(times: int) -> bool:
            return all(streams.counts[kind] >= times for kind in KINDS)

        asyncio.run(asyncio.wait_for(streams.run(partial(has_done_everything, 40)), DEADLINE_S))
        before = at_rest(server)
        asyncio.run(asyncio.wait_for(streams.run(partial(has_done_everything, 100)), DEADLINE_S))
        assert streams.faults == []
        server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == before, before)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call: Any = channel.stream_stream(PATH)  # messages as bytes
            asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            idle = call(iter(asked.get, None))
            asked.put(request("echo", "idle", np.arange(3)))
            assert next(idle)
            assert server.stop() == 0
            with pytest.raises(grpc.RpcError, match="GRPC server is shutting down"):
                next(idle)
            asked.put(None)
        assert b"Traceback" not in server.log, server.log.decode()
