"""Tensors that stay on a GPU between two steps: who has which part of which pool, under any order of deaths.

The exchange, the slabs and the pools are real, the driver is a fake (scripts/gpu_check/fake), workers and client are
simulated by the test. A reader looks at its input when it ends, so a part that is given back too early shows another
request's numbers.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.batcher.ensemble import Ensemble
from shoal.model_config.gpu_tensors import NO_GPU, gpu_of_inputs
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, FREE, RELEASE, REPLY, REQUEST, B, P
from shoal.shm.slab import Slab, SlabView
from shoal.workers.gpu_pool import GpuPool, PoolPart
from tests.batcher.ensemble_star import FP32, EnsembleStar, config, ensemble, step
from tests.batcher.star import CLIENT
from tests.fake_cuda import fake_cuda, free_nbytes
from tests.request_headers import packed, read_stays

WRITES, READS, CHAIN_ID = 41, 42, 7
PLACED = 256  # in a datatype's number
SIZE = 64  # numbers of a tensor, 256 bytes
ROOM = 3  # tensors in a pool
CHAIN = ensemble(step("Xx", "Ya"), step("Xa", "Yy"))


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with fake_cuda(tmp_path, monkeypatch) as runtime:
        yield runtime


class FakeWorker:
    """A worker with a slab and a pool: what it has been given, what it has written, and what has been freed."""

    def __init__(self, star: "GpuStar", owner: int, model: int) -> None:
        self.owner, self.model = owner, model
        self.end = star.add_worker(owner, star.model(model))
        self.slab = Slab(self.end.own)
        self.pool = GpuPool(0, 4 * SIZE * ROOM)
        self.items: list[tuple[int, ...]] = []

    def look(self) -> None:
        """Take what the batcher has sent."""
        for record in self.end.received():
            if record[0] == BATCH_ITEM:
                self.items.append(record)
                self.free(record[B.FREED])
            elif record[0] == FREE:
                self.free(record[B.BLOCK])

    def free(self, ref: int) -> None:
        if ref:
            assert self.slab.free(ref), "freed twice"
            self.pool.release(ref)

    def write(self, item: tuple[int, ...], row: bytes, parts: tuple[PoolPart, ...] = ()) -> None:
        """Answer a step."""
        block = self.slab.allocate(4096)
        assert block is not None
        said = packed(((("Y", FP32 | PLACED if parts else FP32, (1, SIZE), 1024, 4 * SIZE),), {}))
        block.memory[1024 : 1024 + len(row)] = row
        block.memory[512 : 512 + len(said)] = said
        if parts:
            self.pool.hold(block.ref, parts)
        self.end.send(DONE, item[B.KEY], item[B.BATCH], 0, block.ref, 512 << 32 | len(said), 10, 20, 40, 70)

    @property
    def is_whole(self) -> bool:
        """Whether all of the pool is free, and the slab is."""
        return not self.slab.num_taken and not self.pool._held and free_nbytes(self.pool) in (0, self.pool.nbytes)


class GpuStar(EnsembleStar):
    """An ensemble of a model that writes on the GPU, and one that reads there."""

    ensemble: Ensemble

    def __init__(self, runtime: Any) -> None:
        super().__init__(CHAIN, (WRITES, READS))
        self.runtime = runtime
        for model_id in (WRITES, READS):
            self.add_model(model_id, config("m", "X", "Y")).gpu = 0
        self.owners = iter(range(100, 4000))
        self.workers = {model: FakeWorker(self, next(self.owners), model) for model in (WRITES, READS)}
        #: Blocks of the requests that were asked, by number; replies; requests that were released, or cancelled; the
        #: requests that steps were made for, by the steps' keys.
        self.asked: dict[int, int] = {}
        self.replies: dict[int, tuple[int, ...]] = {}
        self.released: set[int] = set()
        self.cancelled: set[int] = set()
        self.known: dict[int, int] = {}
        self.now_ns = 1000

    def advance(self) -> None:
        """One step of the batcher at a later time; then everybody looks."""
        self.now_ns += 1000
        self.step(self.now_ns)
        for worker in self.workers.values():
            worker.look()
            self.known |= {item[B.KEY]: self.asker(item) for item in worker.items if item[B.KEY] not in self.known}
        for reply in self.client.received():
            assert reply[0] == REPLY
            assert reply[P.NUMBER] not in self.replies
            self.replies[reply[P.NUMBER]] = reply
            self.check(reply)

    def asker(self, item: tuple[int, ...]) -> int:
        """The number of the client's request that a step is made for."""
        number = item[B.KEY] & (1 << 40) - 1
        (run,) = [run for run in self.ensemble.runs.open.values() if any(number in it.asked for it in run.iterations)]
        return run.key & (1 << 40) - 1

    def check(self, reply: tuple[int, ...]) -> None:
        """A success has its request's number in it, and nothing else."""
        if not (reply[P.STATUS] or reply[P.REASON]):
            (piece,) = self.pieces(reply)
            block = self.opened(piece)
            assert block is not None
            assert set(np.frombuffer(bytes(block[1024 : 1024 + 4 * SIZE]), np.float32)) == {reply[P.NUMBER]}

    def pieces(self, reply: tuple[int, ...]) -> list[int]:
        view = SlabView(self.batcher_view).open(reply[P.BLOCK]) if reply[P.PIECES] else None
        return [] if view is None else view[: 8 * reply[P.PIECES]].cast("Q").tolist()

    def opened(self, ref: int) -> memoryview | None:
        """A block of a worker that lives."""
        worker = self.owner_of(ref)
        return None if worker is None else SlabView(worker.end.own_view).open(ref)

    def owner_of(self, ref: int) -> "FakeWorker | None":
        return next((each for each in self.workers.values() if each.owner == ref >> 40), None)

    # --- what happens ---

    def ask_one(self) -> None:
        if len(self.asked) - len(self.released) < 8:
            number = len(self.asked) + 1
            request = self.request(number, (), SIZE)
            self.asked[number] = request[2]
            self.client.send(REQUEST, *request)
            self.advance()

    def write(self) -> None:
        """The writer answers its oldest step, on the GPU if there is room: the request's number, again and again."""
        worker = self.workers[WRITES]
        if worker.items:
            item = worker.items.pop(0)
            _, address = self.runtime.cudaMalloc(4 * SIZE)
            source = np.full(SIZE, self.known[item[B.KEY]], np.float32)
            self.runtime.cudaMemcpyAsync(address, source.ctypes.data, source.nbytes, 1, 7)
            part = worker.pool.keep(address, source.nbytes)
            self.runtime.cudaFree(address)
            if part is None:
                worker.write(item, source.tobytes())
            else:
                worker.write(item, worker.pool.place(part), (part,))
            self.advance()

    def read(self) -> None:
        """The reader answers its oldest step, after it has looked at its input for the last time."""
        worker = self.workers[READS]
        if worker.items:
            item = worker.items.pop(0)
            ((_, wire, _, offset, nbytes, ref),) = self.header(item)[1]
            writer, block, found = self.owner_of(ref), self.opened(ref), bytes(nbytes)
            if writer is not None and block is not None and wire & PLACED:
                start = int.from_bytes(block[offset + 68 : offset + 76], "little")
                found = ctypes.string_at(writer.pool.address + start, nbytes)
            elif block is not None:
                found = bytes(block[offset : offset + nbytes])
            worker.write(item, found)
            self.advance()

    def writer_dies(self) -> None:
        self.die(WRITES)

    def reader_dies(self) -> None:
        self.die(READS)

    def die(self, model: int) -> None:
        """A worker dies with its memory on the GPU; another takes its place."""
        self.now_ns += 1000
        self.remove_worker(self.workers[model].owner, self.now_ns)
        self.workers[model] = FakeWorker(self, next(self.owners), model)
        self.advance()

    def release_all(self) -> None:
        """The client releases what it has got."""
        for number in self.replies.keys() - self.released:
            self.released.add(number)
            self.slabs[CLIENT].free(self.asked[number])
            for part in self.pieces(self.replies[number]):
                self.client.send(RELEASE, number, 0, part)
            self.client.send(RELEASE, number)
        self.advance()

    def cancel(self) -> None:
        """The client cancels its last request."""
        number = len(self.asked)
        if number and number not in self.replies:
            self.cancelled.add(number)
            self.client.send(CANCEL, number)
            self.advance()


ACTIONS = [GpuStar.ask_one, GpuStar.write, GpuStar.read, GpuStar.release_all]
RARE = [GpuStar.writer_dies, GpuStar.reader_dies, GpuStar.cancel]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(schedule=st.lists(st.sampled_from([*ACTIONS, *ACTIONS, *ACTIONS, *RARE]), max_size=60))
def test_each_part_is_given_back_once_and_only_when_it_is_not_read(
    runtime: Any, schedule: list[Callable[[GpuStar], None]]
) -> None:
    star = GpuStar(runtime)
    for action in schedule:
        action(star)
    while any(worker.items for worker in star.workers.values()):
        star.write()
        star.read()
    star.release_all()
    star.advance()
    assert star.replies.keys() | star.cancelled == star.asked.keys()
    assert star.is_at_rest
    assert all(worker.is_whole for worker in star.workers.values())


def stays(runtime: Any, gpus: tuple[int, int], of: dict[str, Any] = CHAIN) -> Any:
    """What the writer is told, for models on these GPUs."""
    star = GpuStar(runtime)
    star.exchange.remove_model(7, 0)
    for model_id, gpu in zip((WRITES, READS), gpus, strict=True):
        star.model(model_id).gpu = gpu
    star.ensemble = star.add_ensemble(7, of, (WRITES, READS))
    star.ask_one()
    (item,) = star.workers[WRITES].items
    return read_stays(star.header_bytes(item))


def test_the_writer_is_told_what_may_stay_and_where(runtime: Any) -> None:
    assert stays(runtime, (0, 0)) == (("Y", 0),)
    assert stays(runtime, (NO_GPU, 3)) == (("Y", 3),)  # a worker on another GPU will not
    assert stays(runtime, (0, NO_GPU)) == ()
    seen = ensemble(step("Xx", "Ya"), step("Xa", "Yy"), outputs="ay")
    assert stays(runtime, (0, 0), seen) == ()


def group(kind: str = "KIND_GPU", *gpus: int) -> dict[str, Any]:
    return {"kind": kind, "gpus": list(gpus)}


@pytest.mark.parametrize(
    ("backend", "force", "groups", "gpu"),
    [
        ("python", "no", [group("KIND_GPU", 1)], 1),
        ("python", "yes", [group("KIND_GPU", 1)], NO_GPU),
        ("python", "no", [group("KIND_GPU", 1), group("KIND_GPU", 1)], 1),
        ("python", "no", [group("KIND_GPU", 0, 1)], NO_GPU),
        ("python", "no", [group("KIND_GPU", 1), group("KIND_CPU")], NO_GPU),
        ("python", "no", [group("KIND_CPU")], NO_GPU),
        ("python", "no", [group("KIND_MODEL")], NO_GPU),
        ("pytorch", "", [group("KIND_GPU", 0)], 0),
        ("onnxruntime", "", [group("KIND_GPU", 0)], NO_GPU),
    ],
)
def test_models_that_take_tensors_on_a_gpu(backend: str, force: str, groups: list[dict[str, Any]], gpu: int) -> None:
    parameters = {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": force}} if force else {}
    assert gpu_of_inputs({"backend": backend, "instance_group": groups, "parameters": parameters}) == gpu
