"""workers/gpu_pool.py and gpu_answers.py on a fake GPU: which parts are taken when, and what stays."""

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature
from shoal.workers.gpu_answers import DeviceOutput
from shoal.workers.gpu_pool import ALIGNMENT, Extents, GpuPool
from shoal.workers.loop import Loop
from tests.fake_cuda import contents, fake_cuda, free_nbytes
from tests.request_headers import packed
from tests.workers.worker_harness import CONFIG, Batcher, Returning

NBYTES = 4 * ALIGNMENT


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with fake_cuda(tmp_path, monkeypatch) as runtime:
        yield runtime


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-20, -1)), max_size=60))
def test_no_byte_is_taken_twice_and_neighbours_are_joined(steps: list[int]) -> None:
    """A number above 0 takes as many units, one below gives back one of those that are taken."""
    extents, taken = Extents(16), list[tuple[int, int]]()
    for step in steps:
        if step > 0:
            is_room = any(end - start >= step for start, end in extents.free)
            start = extents.take(step)
            assert (start is not None) == is_room
            if start is not None:
                taken.append((start, step))
        elif taken:
            extents.put(*taken.pop(step % len(taken)))
        units = sorted(unit for start, size in taken for unit in range(start, start + size))
        free = [unit for start, end in extents.free for unit in range(start, end)]
        assert sorted([*units, *free]) == list(range(16))
        assert all(one[1] < other[0] for one, other in zip(extents.free, extents.free[1:], strict=False))


def test_what_is_free_cannot_be_given_back() -> None:
    extents = Extents(8)
    assert extents.take(4) == 0
    for start, nbytes in ((4, 4), (2, 4), (0, 5)):
        with pytest.raises(ValueError, match="is free already"):
            extents.put(start, nbytes)
    extents.put(0, 4)
    assert extents.free == [(0, 8)]


def on_gpu(runtime: Any, array: np.ndarray[Any, Any]) -> int:
    """Where an array is on the GPU now."""
    _, address = runtime.cudaMalloc(array.nbytes)
    runtime.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, 1, 7)
    runtime.cudaStreamSynchronize(7)
    return int(address)


def test_a_part_is_free_with_its_block_and_without_one_at_once(runtime: Any, tmp_path: Path) -> None:
    pool = GpuPool(3, NBYTES)
    first, second = (on_gpu(runtime, np.full(ALIGNMENT // 4, number, np.float32)) for number in (1, 2))
    part = pool.keep(first, ALIGNMENT)
    assert part is not None
    place = pool.place(part, 8)
    name = place[4:68].rstrip(b"\0").decode().removeprefix("fake-")
    assert (place[:4], place[68:]) == (b"\3\0\0\0", b"\x08" + bytes(7))
    runtime.cudaFree(first)
    assert contents(tmp_path, name)[:ALIGNMENT] == np.full(ALIGNMENT // 4, 1, np.float32).tobytes()
    pool.hold(7, (part,))
    del part
    assert pool.keep(second, NBYTES) is None
    assert pool.keep(second, ALIGNMENT) is not None  # dropped at once: no block has it
    assert free_nbytes(pool) == NBYTES - ALIGNMENT
    pool.release(8)
    assert free_nbytes(pool) == NBYTES - ALIGNMENT
    for _ in range(2):
        pool.release(7)
        assert free_nbytes(pool) == NBYTES


def test_a_pool_that_cannot_be_made_is_said_once(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def cudaMalloc(_nbytes: int) -> tuple[int, int]:
        return runtime.cudaError_t.cudaErrorMemoryAllocation, 0

    monkeypatch.setattr(runtime, "cudaMalloc", cudaMalloc)
    pool = GpuPool(0, NBYTES)
    for _ in range(2):
        assert pool.keep(4096, 256) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"tensors do not stay on GPU 0 between models: a pool of {NBYTES} bytes could not be made there (CUDA error 2: "
        "out of memory (cudaErrorMemoryAllocation in cudaMalloc))"
    ]


class OnGpu(Returning):
    """Answers with twice its input, on the GPU."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(lambda inputs: inputs)
        self._runtime = runtime
        self.num_copied = 0

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        twice = 2 * inputs["INPUT0"]

        def host() -> np.ndarray[Any, Any]:
            self.num_copied += 1
            return np.array(twice)

        address = on_gpu(self._runtime, twice)
        return {"OUTPUT0": DeviceOutput(address, twice.shape, twice.dtype, twice.nbytes, host, self)}


def asked(batcher: Batcher, rows: int, *stays: tuple[str, int], first: float = 1) -> tuple[int, int]:
    """A request whose outputs may stay."""
    data = np.arange(first, first + 4 * rows, dtype=np.float32).tobytes()
    layout = packed([[["INPUT0", 11, [rows, 4], 0, len(data)]], [], *([stays] if stays else [])])
    return batcher.raw_request(data, len(layout).to_bytes(4, "little") + layout + packed(["", {}]))


@pytest.fixture
def gpu_loop(runtime: Any, batcher: Batcher) -> tuple[Loop, GpuPool, OnGpu]:
    memory, backend, pool = batcher.memory(), OnGpu(runtime), GpuPool(2, NBYTES)
    memory.keep_on_gpu(pool)
    return Loop(backend, Signature.from_config(CONFIG), "m_0_0", memory, gpu=2), pool, backend


def test_outputs_stay_if_all_requests_of_the_batch_let_them(
    gpu_loop: tuple[Loop, GpuPool, OnGpu], batcher: Batcher
) -> None:
    loop, pool, backend = gpu_loop
    one, two = asked(batcher, 1, ("OUTPUT0", 2)), asked(batcher, 2, ("OUTPUT0", 2), first=5)
    for number in (one[0], two[0]):
        batcher._rows[number] = 1 if number == one[0] else 2
    batcher.send(one, two)
    loop.step()
    records = list(batcher.reader.drain())
    block = batcher.results.open(records[0][4])
    assert block is not None
    assert backend.num_copied == 0
    places = []
    for record in records:
        offset, nbytes = record[5] >> 32, record[5] & 0xFFFFFFFF
        ((name, wire, shape, start, size),), _ = msgpack.unpackb(bytes(block[offset : offset + nbytes]))
        assert (name, wire, size) == ("OUTPUT0", 11 | 256, 16 * shape[0])
        places.append(bytes(block[start : start + 76]))
        at = int.from_bytes(places[-1][68:], "little")
        values = np.frombuffer(ctypes.string_at(pool.address + at, size), np.float32)
        assert values.tolist() == ([2, 4, 6, 8] if shape[0] == 1 else list(range(10, 26, 2)))
    assert len(pool._held) == 1
    batcher.free(records[0][4])
    loop.step()
    assert (len(pool._held), free_nbytes(pool)) == (0, NBYTES)


@pytest.mark.parametrize("stays", [[(("OUTPUT0", 2),), ()], [(("OUTPUT0", 1),)], [(("OTHER", 2),)], [()]])
def test_all_other_outputs_are_in_the_block(
    gpu_loop: tuple[Loop, GpuPool, OnGpu], batcher: Batcher, stays: list[Any]
) -> None:
    loop, pool, backend = gpu_loop
    batcher.send(*[asked(batcher, 1, *each) for each in stays])
    loop.step()
    assert [done.outputs["OUTPUT0"].tolist() for done in batcher.done()] == [[[2, 4, 6, 8]]] * len(stays)
    assert (backend.num_copied, len(pool._held)) == (1, 0)


def test_a_batch_that_fails_leaves_nothing_in_the_pool(gpu_loop: tuple[Loop, GpuPool, OnGpu], batcher: Batcher) -> None:
    loop, pool, _ = gpu_loop
    memory, allocate = loop._memory, loop._memory.allocate

    def refuse(_nbytes: int) -> Any:
        memory.allocate = allocate  # for the error
        raise InvalidArgumentError("no")

    memory.allocate = refuse
    batcher.send(asked(batcher, 1, ("OUTPUT0", 2)))
    loop.step()
    assert [done.sentence for done in batcher.done()] == ["no"]
    gc.collect()
    assert (len(pool._held), free_nbytes(pool)) == (0, NBYTES)
