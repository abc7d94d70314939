"""A star with an ensemble whose first step answers any number of times."""

from typing import Any

from shoal.shm.layout import DONE, RESPONSE, B
from tests.batcher.ensemble_star import ADD, DOUBLE, FP32, EnsembleStar, ensemble, step
from tests.batcher.star import End
from tests.request_headers import packed

#: `double` streams here: each of its answers goes through `add`, with the request's own tensor.
STREAM = ensemble(step("Xx", "Ya"), step("Aa Bx", "Yy"))
MODELS = (DOUBLE, ADD)


class Streams(EnsembleStar):
    """Workers that answer more than once."""

    def respond(self, worker: End, item: tuple[int, ...], size: int = 3) -> int:
        """A decoupled worker answers one step, not for the last time; returns its result's block."""
        header = packed(((("Y", FP32, (1, size), 128, 4 * size),), {"q": worker.owner}))
        return self.send_done(worker, item, 0, header, RESPONSE)

    def end(self, worker: End, item: tuple[int, ...]) -> None:
        """A decoupled worker has no more answers."""
        worker.send(DONE, item[B.KEY], item[B.BATCH], 0, 0, 0, 10, 20, 40, 70)
        self.step(2000)


def streaming(of: dict[str, Any] = STREAM, decoupled: tuple[int, ...] = (0,)) -> Streams:
    return Streams(of, MODELS, decoupled)
