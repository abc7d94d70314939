"""Models without a server: run in this process, with the real batcher, on a clock that the test controls.

    from shoal.testing import Server

    with Server("model_repository", models=["simple"]) as server:
        futures = [server.submit("simple", {"INPUT0": a, "INPUT1": b}) for _ in range(5)]
        server.advance(milliseconds=2)
        assert [batch.rows for batch in server.batches] == [5]
        assert futures[0].result()["OUTPUT0"].shape == (1, 16)

No ports and no processes: configuration, validation, batcher, workers' loops and the rings between them are the
server's own, HTTP and gRPC are left out. A model runs in the thread that waits for it, so a breakpoint in it works.
"""

from shoal.testing.future import Batch, Future, Response, StuckError
from shoal.testing.server import Server

__all__ = ["Server", "Future", "Response", "Batch", "StuckError"]
