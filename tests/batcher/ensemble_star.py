"""A star with an ensemble: a client, and workers of the models of its steps, which the test plays."""

from typing import Any

import msgpack

from shoal.shm.layout import BATCH_ITEM, DONE, RELEASE, REPLY, REQUEST, B, P, unpack_span
from shoal.shm.slab import Slab, SlabView
from tests.batcher.star import CLIENT, End, Star
from tests.request_headers import packed, read_header, request_header

FP32 = 11  # its wire number
DOUBLE, ADD, FAN, FIRST, SECOND = 5, 6, 7, 31, 32


def tensor(name: str) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": [-1], "optional": False, "allow_ragged_batch": False,
            "label_filename": ""}  # fmt: skip


def config(name: str, inputs: str, outputs: str, **more: Any) -> dict[str, Any]:
    tensors = {"input": [tensor(each) for each in inputs], "output": [tensor(each) for each in outputs]}
    return {"name": name, "max_batch_size": 4, **tensors, **more}


def step(inputs: str, outputs: str) -> dict[str, Any]:
    """`Xa` maps X to the tensor a; pairs are separated by blanks."""
    maps = [{pair[0]: pair[1] for pair in pairs.split()} for pairs in (inputs, outputs)]
    return {"model_name": "m", "model_version": -1, "input_map": maps[0], "output_map": maps[1]}


def ensemble(*steps: dict[str, Any], outputs: str = "y") -> dict[str, Any]:
    return config("fan", "x", outputs, ensemble_scheduling={"step": list(steps)})


#: What a response says of a sequence where its request is of none.
NO_SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
CHAIN = ensemble(step("Xx", "Ya"), step("Xa", "Yy"))
FANNED = ensemble(step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy"), outputs="ay")


class EnsembleStar(Star):
    """A client, whose requests lie in its slab, and workers of `double` and `add`, whose results lie in theirs."""

    def __init__(self, of: dict[str, Any], models: tuple[int, ...], decoupled: tuple[int, ...] = ()) -> None:
        super().__init__()
        double, add = self.add_model(DOUBLE, config("double", "X", "Y")), self.add_model(ADD, config("add", "AB", "Y"))
        self.ensemble = self.add_ensemble(FAN, of, models, decoupled)
        self.client = self.add_client(CLIENT)
        self.double, self.add = self.add_worker(FIRST, double), self.add_worker(SECOND, add)
        self.slabs = {end.owner: Slab(end.own) for end in (self.client, self.double, self.add)}

    def ask(self, number: int = 1, outputs: tuple[str, ...] = (), size: int = 3, **words: int) -> int:
        """A request of one row; returns its block."""
        asked = self.request(number, outputs, size, **words)
        self.client.send(REQUEST, *asked)
        self.step()
        return asked[2]

    def request(self, number: int = 1, outputs: tuple[str, ...] = (), size: int = 3, **words: int) -> tuple[int, ...]:
        """The words of a request of one row, but for its kind."""
        header = request_header("id", (("x", FP32, (1, size), 0, 4 * size),), outputs, {"p": 1})
        block = self.slabs[CLIENT].allocate(4096)
        assert block is not None
        block.memory[64 : 64 + len(header)] = header
        span = 64 << 32 | len(header)
        wishes = words.get("priority", 0), words.get("timeout", 0)
        return number, FAN, block.ref, span, 1, 0, *wishes, *[0] * 6, words.get("deadline", 0)

    def step(self, now_ns: int = 1000) -> None:
        self.exchange.step(now_ns)

    def items(self, worker: End) -> list[tuple[int, ...]]:
        return [record for record in worker.received() if record[0] == BATCH_ITEM]

    def item(self, worker: End) -> tuple[int, ...]:
        """The one step that a worker has been given."""
        (item,) = self.items(worker)
        return item

    def header(self, item: tuple[int, ...]) -> Any:
        """What a worker reads of a step's request."""
        return read_header(self.header_bytes(item))

    def header_bytes(self, item: tuple[int, ...]) -> bytes:
        """The header of a step's request."""
        block = SlabView(self.batcher_view).open(item[B.BLOCK])
        assert block is not None
        offset, nbytes = unpack_span(item[B.HEADER])
        return block[offset : offset + nbytes].tobytes()

    def answer(self, worker: End, item: tuple[int, ...], size: int = 3, outputs: str = "Y") -> int:
        """A worker answers one step; returns its result's block."""
        header = packed((tuple((name, FP32, (1, size), 128, 4 * size) for name in outputs), {"q": worker.owner}))
        return self.send_done(worker, item, 0, header)

    def send_done(self, worker: End, item: tuple[int, ...], status: int, said: bytes, kind: int = DONE) -> int:
        block = self.slabs[worker.owner].allocate(4096)
        assert block is not None
        block.memory[512 : 512 + len(said)] = said
        span = 512 << 32 | len(said)
        worker.send(kind, item[B.KEY], item[B.BATCH], status, block.ref, span, 10, 20, 40, 70)
        self.step(2000)
        return block.ref

    def reply(self) -> tuple[tuple[int, ...], Any]:
        """The client's reply, and what it reads."""
        (reply,) = self.client.received()
        assert reply[0] == REPLY
        block = SlabView(self.batcher_view).open(reply[P.BLOCK])
        assert block is not None
        offset, nbytes = unpack_span(reply[P.HEADER])
        said = block[offset : offset + nbytes].tobytes()
        if reply[P.STATUS]:
            return reply, said.decode()
        return reply, (block[: 8 * reply[P.PIECES]].cast("Q").tolist(), *msgpack.unpackb(said, use_list=False))

    def release(self, number: int = 1, *parts: int) -> None:
        for part in parts:
            self.client.send(RELEASE, number, 0, part)
        self.client.send(RELEASE, number)
        self.step(3000)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is open, and everybody has been told of all that was held."""
        own = self.exchange.blocks.own
        return not (self.exchange.num_open or len(self.exchange.holders) or own is None or own.num_taken)
