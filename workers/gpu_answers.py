"""Answers of an instance on a GPU: outputs may stay on the GPU, in the worker's pool, for the models that read them.

A backend adds such outputs as DeviceOutputs. An output stays if every request of the batch allows that (a client's
request never does) and the pool has room; else it is copied to host memory like any other output. The block of the
answers then has a place for each request, and the parts of the pool belong to the block (gpu_pool.py). Runs in a
worker.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from shoal.datatypes import BYTES
from shoal.request import PLACED, Parameters
from shoal.workers.answers import WrittenAnswers
from shoal.workers.gpu_pool import PoolPart
from shoal.workers.plans import PLACE_STRIDE, Column, OutputLayout
from shoal.workers.requests import Request
from shoal.workers.tensors import Array, Output


class DeviceOutput:
    """An output in a backend's own memory on the GPU: contiguous elements in C order, complete once all work on the GPU
    so far is done. It has the properties of a numpy array that are needed to lay out answers."""

    __slots__ = ("_keep", "address", "dtype", "host", "nbytes", "part", "shape")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: Any, nbytes: int, host: Callable[[], Array], keep: object
    ) -> None:
        """`host` makes a copy in host memory; `keep` is an object that keeps the output's memory on the GPU."""
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self.host = host
        self._keep = keep
        #: The part of the worker's pool where the output stays; None as long as it is not in the pool. Set by
        #: GpuAnswers.
        self.part: PoolPart | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


class GpuAnswers(WrittenAnswers):
    """WrittenAnswers to which outputs on the GPU can be added, too."""

    def add_outputs(self, request: Request, outputs: Sequence[Output], parameters: Parameters | None = None) -> None:
        """Like Answers.add_outputs; an array may be a DeviceOutput, which is dropped without a copy if the request does
        not want it."""
        settled: list[Output] = []
        for name, datatype, given in outputs:
            array: Any = given
            if type(array) is DeviceOutput:
                if name not in self._plans.signature.outputs or not request.parsed.wants(name):
                    continue
                array = self._settled((request,), name, array)
            settled.append((name, datatype, array))
        super().add_outputs(request, settled, parameters)

    def add_batch(self, requests: Sequence[Request], outputs: Mapping[str, Array]) -> None:
        """Like Answers.add_batch; an array may be a DeviceOutput."""
        is_divided, rows = self._plans.signature.max_batch_size > 0, sum([each.parsed.rows for each in requests])
        settled: dict[str, Any] = {}
        for name, given in outputs.items():
            array: Any = given
            if type(array) is DeviceOutput:
                fits = not is_divided or (array.shape[:1] == (rows,) and not self._plans.has_strings)
                array = self._settled(requests, name, array) if fits else array.host()
            settled[name] = array
        super().add_batch(requests, settled)

    def _settled(self, requests: Sequence[Request], name: str, output: DeviceOutput) -> "DeviceOutput | Array":
        """An output in the place where it will be read: a DeviceOutput in the pool, or an array in host memory."""
        pool, plans = self._memory.gpu_pool, self._plans
        if (
            pool is not None
            and plans.states is None
            and plans.signature.outputs[name].datatype is not BYTES
            and all(request.parsed.stays.get(name) == pool.gpu for request in requests)
            and (part := pool.keep(output.address, output.nbytes)) is not None
        ):
            output.part = part
            return output
        return output.host()

    def _plan(
        self,
        requests: Sequence[Request],
        columns: Sequence[Column],
        pieces: Sequence[Array | bytes],
        parameters: Parameters | None = None,
    ) -> OutputLayout:
        given: Sequence[Any] = pieces or (None,) * len(columns)
        marked = [
            (name, wire | PLACED if type(piece) is DeviceOutput else wire, shape, nbytes)
            for (name, wire, shape, nbytes), piece in zip(columns, given, strict=True)
        ]
        return super()._plan(requests, marked, pieces, parameters)

    def write(self) -> int:
        """Like WrittenAnswers.write: the block has the places of the outputs that stay on the GPU. Once this returns,
        no work of this process on the GPU reads inputs any more. Raises CudaError if the GPU is lost."""
        pool, regions, parts = self._memory.gpu_pool, self._memory.cuda, self._put_places()
        if regions is not None:
            regions.wait_until_read()
        ref = super().write()
        if pool is not None and parts:
            pool.hold(ref, parts)
        return ref

    def _put_places(self) -> tuple[PoolPart, ...]:
        """Replace each output that stays on the GPU by the bytes of its places; returns the outputs' parts of the
        pool."""
        pool, parts = self._memory.gpu_pool, []
        assert pool is not None, "an instance without a pool has WrittenAnswers"
        for number, (layout, columns, pieces, requests) in enumerate(self._added):
            put: list[Array | bytes] = []
            rows = list(accumulate([request.parsed.rows for request in requests], initial=0))
            for piece in pieces:
                kept: Any = piece
                if type(kept) is DeviceOutput:
                    assert kept.part is not None, "otherwise its copy on the host was added"
                    parts.append(kept.part)
                    row_nbytes = kept.nbytes // max(1, rows[-1])
                    places = [pool.place(kept.part, start * row_nbytes) for start in rows[:-1]]
                    piece = b"".join([each.ljust(PLACE_STRIDE, b"\0") for each in places])
                put.append(piece)
            self._added[number] = layout, columns, put, requests
        return tuple(parts)
