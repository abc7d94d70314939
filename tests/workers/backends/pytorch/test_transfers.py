"""transfers.py, with ordinary memory in the place of page-locked, and the CPU in a GPU's: copies and waits."""

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from triton_python_backend_utils import dlpack

from shoal.model_config.signature import Signature
from shoal.shm.cuda_regions import CudaPlace
from shoal.workers.backends.pytorch.transfers import Transfers
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.loop import Loop
from tests.fake_cuda import contents, fake_cuda, free_nbytes, others_memory
from tests.request_headers import packed
from tests.workers.backends.pytorch.pytorch_models import WARNINGS, Sum, config, loaded, scripted
from tests.workers.worker_harness import Batcher

pytestmark = WARNINGS
CPU = torch.device("cpu")


class FakeGpu:
    """Page-locked memory that counts what is made of it, and a GPU that is done at once."""

    def __init__(self) -> None:
        self.made: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.num_waits = 0
        self.fails = False

    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("CUDA error: out of memory")
        self.made.append((shape, dtype))
        return torch.empty(shape, dtype=dtype)

    def wait(self) -> None:
        self.num_waits += 1

    @property
    def transfers(self) -> Transfers:
        return Transfers(CPU, self.make, self.wait)


def test_memory_of_an_input_grows_and_stays() -> None:
    gpu = FakeGpu()
    transfers = gpu.transfers
    first = transfers.stage("A", 100)
    assert (first.nbytes, transfers.stage("A", 60).nbytes, transfers.stage("B", 60).nbytes) == (100, 60, 60)
    assert transfers.stage("A", 0).nbytes == 0
    assert transfers.stage("C", 0).nbytes == 0
    assert transfers.stage("A", 101).nbytes == 101
    assert [shape for shape, _ in gpu.made] == [(100,), (60,), (1,), (101,)]


def test_memory_that_cannot_grow_is_made_anew_the_next_time() -> None:
    gpu = FakeGpu()
    transfers = gpu.transfers
    transfers.stage("A", 100)
    gpu.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        transfers.stage("A", 200)
    gpu.fails = False
    assert transfers.stage("A", 100).nbytes == 100
    assert len(gpu.made) == 2


def test_all_outputs_are_copied_and_then_waited_for_once() -> None:
    gpu = FakeGpu()
    matrix = torch.arange(6.0).reshape(2, 3).t()  # not contiguous
    words = torch.ones(4, dtype=torch.bfloat16)
    arrived = gpu.transfers.to_host({"A": matrix, "B": words, "T": ["a"]})
    assert arrived["A"].tolist() == matrix.tolist()
    assert arrived["A"].is_contiguous()
    assert arrived["A"].data_ptr() != matrix.data_ptr()
    assert torch.equal(arrived["B"], words)
    assert arrived["T"] == ["a"]
    assert gpu.num_waits == 1
    assert gpu.made == [((3, 2), torch.float32), ((4,), torch.bfloat16)]


def test_an_output_that_is_in_host_memory_already_is_passed_on() -> None:
    gpu = FakeGpu()
    value = torch.ones(2)
    elsewhere = Transfers(torch.device("meta"), gpu.make, gpu.wait)
    assert elsewhere.to_host({"A": value})["A"] is value
    assert gpu.made == []


def test_a_batch_is_gathered_in_page_locked_memory_and_answered_from_it(tmp_path: Path, batcher: Batcher) -> None:
    backend = loaded(scripted(tmp_path, Sum()), config(["A", "B"], ["Y"]))
    gpu = FakeGpu()
    backend._transfers = transfers = gpu.transfers
    backend.stage = transfers.stage
    loop = Loop(backend, Signature.from_config(config(["A", "B"], ["Y"])), "m_0_0", batcher.memory())
    sources: list[int] = []
    to_device = Transfers.to_device

    def noted(self: Transfers, tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
        sources.append(tensor.data_ptr())
        return to_device(self, tensor, memory_format)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transfers, "to_device", noted)
        for sizes in ((1, 2), (3,)):
            arrays = [np.full((rows, 4), rows, np.float32) for rows in sizes]
            batcher.send(*(batcher.request([("A", "FP32", a), ("B", "FP32", a)]) for a in arrays))
            loop.step()
            assert [done.outputs["Y"].tolist() for done in batcher.done()] == [(2 * a).tolist() for a in arrays]
    staged: list[Any] = [transfers.stage(name, 1) for name in ("A", "B")]
    assert sources == 2 * [np.frombuffer(memory, np.uint8).ctypes.data for memory in staged]
    assert gpu.num_waits == 2


def test_inputs_on_the_gpu_are_joined_there(tmp_path: Path, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's tensors, one of them beside a tensor in the request, alone and in one batch with those of another."""
    tensors = config(["A", "B"], ["Y"])
    backend = loaded(scripted(tmp_path, Sum()), tensors)
    gpu = FakeGpu()
    backend._transfers = gpu.transfers
    backend.stage = gpu.transfers.stage
    monkeypatch.setattr(dlpack, "CUDA", dlpack.CPU)  # where PyTorch's build for the CPU finds the fake GPU's memory
    given = [np.arange(start, start + 4, dtype=np.float32) for start in (0, 10, 20)]
    with fake_cuda(tmp_path, monkeypatch):
        handle = others_memory(tmp_path, "client", np.concatenate(given).tobytes())
        place = CudaPlace(1, 0, handle).pack()
        loop = Loop(backend, Signature.from_config(tensors), "m_0_0", batcher.memory(), gpu=0)
        both = layout_of([["A", 11, [1, 4], 0, 16, place], ["B", 11, [1, 4], 16, 16, place]])
        one = layout_of([["A", 11, [1, 4], 32, 16, place], ["B", 11, [1, 4], 0, 16]])
        for _ in range(2):  # the second time their layouts are known
            batcher.send(batcher.raw_request(b"", both), batcher.raw_request(given[1].tobytes(), one))
            batcher.send(batcher.raw_request(b"", both), batch=2)
            loop.step()
            answers = [done.outputs["Y"].tolist() for done in batcher.done()]
            sums = [(given[0] + given[1]).tolist(), (given[2] + given[1]).tolist()]
            assert answers == [[sums[0]], [sums[1]], [sums[0]]]
    assert [shape for shape, dtype in gpu.made if dtype is torch.uint8] == []  # nothing was gathered on the host
    assert contents(tmp_path, "client") == np.concatenate(given).tobytes()


def test_outputs_stay_on_the_gpu_if_the_requests_let_them(
    tmp_path: Path, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = config(["A", "B"], ["Y"])
    backend = loaded(scripted(tmp_path, Sum()), tensors)
    gpu = FakeGpu()
    backend._transfers = gpu.transfers
    backend.stage = gpu.transfers.stage
    array = np.arange(4, dtype=np.float32)
    inputs = [["A", 11, [1, 4], 0, 16], ["B", 11, [1, 4], 0, 16]]
    with fake_cuda(tmp_path, monkeypatch):
        memory, pool = batcher.memory(), GpuPool(0, 1024)
        memory.keep_on_gpu(pool)
        backend.keep_outputs_on_gpu(pool, memory.cuda_regions)
        loop = Loop(backend, Signature.from_config(tensors), "m_0_0", memory, gpu=0)
        batcher.send(batcher.raw_request(array.tobytes(), layout_of(inputs, ("Y", 0))))
        batcher.send(batcher.raw_request(array.tobytes(), layout_of(inputs)), batch=2)
        loop.step()
        stays, other = [record for record in batcher.reader.drain() if record[0] == 7]
        block = batcher.results.open(stays[4])
        assert block is not None
        offset, nbytes = stays[5] >> 32, stays[5] & 0xFFFFFFFF
        ((_, wire, shape, start, size),), _ = msgpack.unpackb(bytes(block[offset : offset + nbytes]))
        assert (wire, shape, size) == (11 | 256, [1, 4], 16)
        name = bytes(block[start + 4 : start + 68]).rstrip(b"\0").decode().removeprefix("fake-")
        assert contents(tmp_path, name)[:16] == (2 * array).tobytes()
        assert batcher._read(other).outputs["Y"].tolist() == [(2 * array).tolist()]
        assert len(pool._held) == 1
        batcher.free(stays[4])
        loop.step()
        assert (len(pool._held), free_nbytes(pool)) == (0, 1024)


def layout_of(inputs: list[Any], *stays: tuple[str, int]) -> bytes:
    """A header with these inputs, all outputs wanted, some of which may stay on a GPU."""
    layout = packed([inputs, [], *([stays] if stays else [])])
    return len(layout).to_bytes(4, "little") + layout + packed(["", {}])


@pytest.mark.gpu
def test_on_a_real_gpu(tmp_path: Path) -> None:
    transfers = Transfers.of_gpu(torch.device("cuda", 0))
    memory = transfers.stage("A", 16)
    array = np.ndarray((4,), np.float32, memory)
    array[:] = range(4)
    tensor = torch.from_numpy(array)
    assert tensor.is_pinned()
    there = transfers.to_device(tensor, torch.preserve_format)
    arrived = transfers.to_host({"Y": there * 2})["Y"]
    assert arrived.is_pinned()
    assert arrived.tolist() == [0, 2, 4, 6]
