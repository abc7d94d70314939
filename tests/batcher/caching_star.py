"""A star whose batcher has a response cache of two blocks."""

from typing import Any

import msgpack

from shoal.batcher.peers import ScheduledModel
from shoal.batcher.shared_answers import SharedAnswers
from shoal.shm import layout
from shoal.shm.layout import BATCH_ITEM, DONE, RELEASE, REPLY, REQUEST, Geometry, P
from shoal.shm.slab import Slab, SlabView
from tests.batcher.star import BATCHER, CLIENT, MODEL, WORKER, End, Star, make_segment

SINGLE = {"name": "m", "max_batch_size": 0}
DIGEST = (7, 9)
NUM_BLOCKS = 2
FP32 = 11  # its wire number


class CachingStar(Star):
    """A cache of two blocks, a model that uses it, a front end and a worker."""

    def __init__(
        self, config: dict[str, Any] = SINGLE, max_queue: int = 100, shared: SharedAnswers | None = None
    ) -> None:
        super().__init__()
        own, self.own_view = make_segment(layout.BATCHER, BATCHER, Geometry(0, 16 * layout.UNIT))
        self.exchange.ensembles.connect(own)
        self.now_ns = 10_000
        figures = self._table.cache_figures(NUM_BLOCKS * layout.UNIT)
        self.exchange.enable_cache(figures, lambda: self.now_ns, shared)
        self.cached_model = self.add_cached(MODEL, config, max_queue)
        self.client, self.worker = self.add_client(CLIENT), self.add_worker(WORKER, self.cached_model)
        self.exchange.clients[CLIENT].is_front_end = True
        self.slab = Slab(self.worker.own)

    def add_cached(self, model_id: int, config: dict[str, Any], max_queue: int = 100) -> ScheduledModel:
        model = self.add_model(model_id, config, max_queue)
        assert self.exchange.cached is not None
        self.exchange.cached.name(model_id, f"m:{model_id}", 0)
        model.sharing = self.exchange.cached
        return model

    def ask(self, number: int, digest: tuple[int, int] = DIGEST, client: End | None = None, **words: int) -> None:
        block, priority = layout.pack_ref(CLIENT, 3, 1), words.get("priority", 0)
        (client or self.client).send(
            REQUEST,
            number,
            words.get("model", MODEL),
            block,
            40,
            1,
            0,
            priority,
            0,
            0,
            0,
            100,
            0,
            *digest,
            words.get("deadline", 0),
        )
        self.step()

    def step(self) -> None:
        self.now_ns += 1000
        self.exchange.step(self.now_ns)

    def items(self) -> list[tuple[int, ...]]:
        """What the worker is given."""
        return [record for record in self.worker.received() if record[0] == BATCH_ITEM]

    def answer(self, item: tuple[int, ...], value: bytes = b"abcd", status: int = 0, kind: int = DONE) -> int:
        """The worker answers; returns its result's block, whose header stands behind a tensor that begins at 200."""
        block = self.slab.allocate(4096)
        assert block is not None
        header = packed(((("Y", FP32, (1,), 200, len(value)),), {"q": 1}))
        block.memory[200 : 200 + len(value)] = value
        block.memory[3000 : 3000 + len(header)] = header
        self.worker.send(kind, item[1], item[2], status, block.ref, 3000 << 32 | len(header), 10, 20, 40, 70)
        self.step()
        return block.ref

    def execute(self, value: bytes = b"abcd") -> int:
        (item,) = self.items()
        return self.answer(item, value)

    def replies(self) -> list[tuple[int, int, int]]:
        """(number, block, reason) of each."""
        received = self.client.received()
        assert {record[0] for record in received} <= {REPLY}
        return [(record[P.NUMBER], record[P.BLOCK], record[P.REASON]) for record in received]

    def read(self, reply: tuple[int, ...]) -> bytes:
        """The tensor in a reply that lies in the batcher's memory."""
        block = SlabView(self.own_view).open(reply[P.BLOCK])
        assert block is not None
        offset, nbytes = layout.unpack_span(reply[P.HEADER])
        (((name, _, _, start, size),), parameters) = msgpack.unpackb(block[offset : offset + nbytes], use_list=False)
        assert (name, parameters) == ("Y", {"q": 1})
        return bytes(block[start : start + size])

    def release(self, number: int) -> None:
        self.client.send(RELEASE, number)
        self.step()

    @property
    def cache(self) -> dict[str, int]:
        return self._table_view.cache_figures()


def packed(value: object) -> bytes:
    return msgpack.packb(value)  # type: ignore[no-any-return]
