"""The short form of grpc_streams: two hundred streams, no answer crossed, nothing left of those that were left."""

import asyncio
import queue
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.end_to_end.grpc_streams import PATH, Streams, request
from tests.end_to_end.server import footprint, imbalances, serving
from tests.end_to_end.soak import FLAGS, at_rest, write_models


def test_two_hundred_streams_left_at_random(tmp_path: Path) -> None:
    with serving(write_models(tmp_path), *FLAGS, "--grpc-port=0") as server:
        streams = Streams(server, num_streams=200, seed=7)
        asyncio.run(streams.run(3.0))
        before = at_rest(server)
        asyncio.run(streams.run(5.0))
        assert streams.faults == []
        assert {"ordinary", "decoupled", "mixed", "leave", "leave_at_once"} <= set(streams.counts)
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
