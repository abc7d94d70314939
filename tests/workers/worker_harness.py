"""A worker's surroundings for real: segments, rings, bells. The test plays the batcher and one client."""

import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from shoal.control import Channel
from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.shm import layout, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab, SlabView
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel, BatchedBackend, Device
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.loop import Loop
from shoal.workers.memory import Memory
from shoal.workers.oversize import WorkerOversizeBlocks
from shoal.workers.requests import Request
from shoal.workers.tensors import Array
from tests.request_headers import request_header

CLIENT_OWNER, WORKER_OWNER, LINK_OWNER = 7, 3, 2
WIRE = {"BOOL": 1, "UINT16": 3, "INT32": 8, "INT64": 9, "FP16": 10, "FP32": 11, "BYTES": 13, "BF16": 14}


@dataclass(slots=True)
class Done:
    """One DONE record, with what its block holds."""

    key: int
    batch: int
    status: int
    ref: int
    times: tuple[int, ...]
    sentence: str
    outputs: dict[str, Any]  # name → array, or the raw bytes of a BYTES tensor
    offsets: dict[str, int]
    parameters: dict[str, Any] = field(default_factory=dict)


class Batcher:
    """The other end of a worker's rings, a client's slab, and the supervisor's end of a control connection."""

    def __init__(self, worker_slab_nbytes: int, client_slab_nbytes: int, block_wait_s: float) -> None:
        worker = segment.create(WORKER, WORKER_OWNER, Geometry(256, worker_slab_nbytes), sealed=True)
        link = segment.create(LINK, LINK_OWNER, Geometry(256, 0), sealed=False)
        client = segment.create(CLIENT, CLIENT_OWNER, Geometry(0, client_slab_nbytes), sealed=False)
        self.worker_view = SegmentView.attach(segment.read_only(worker))
        self.client_fd = segment.read_only(client)
        self.descriptors = [worker, segment.read_only(link)]
        self.own = Segment.attach(link)
        self.client_slab = Slab(Segment.attach(client))
        self.writer = RingWriter(self.own, self.worker_view)
        self.reader = RingReader(self.own, self.worker_view)
        self.results = SlabView(self.worker_view)
        self.worker_bell, self.bell = Doorbell.create(), Doorbell.create()
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.supervisor, self.worker_channel = map(Channel, ends)
        self._block_wait_s = block_wait_s
        self._rows: dict[int, int] = {}  # of the requests that were not raw, by block
        self._next = 0

    def close(self) -> None:
        """Give the descriptors back that nobody else closes."""
        self.worker_bell.close()
        self.bell.close()
        os.close(self.client_fd)
        self.supervisor.close()
        self.worker_channel.close()

    def memory(self) -> Memory:
        """The worker's side, the client announced; to be called once."""
        own, link = self.descriptors
        memory = Memory(
            Segment.attach(own),
            SegmentView.attach(link),
            self.worker_bell,
            self.bell,
            WorkerOversizeBlocks(self.worker_channel, self._block_wait_s),
            block_wait_s=self._block_wait_s,
        )
        memory.segments.add(CLIENT_OWNER, SegmentView.attach(os.dup(self.client_fd)))
        return memory

    def request(
        self,
        tensors: Sequence[tuple[str, str, Any]],
        *,
        request_id: str = "",
        outputs: Sequence[str] = (),
        offset: int = 0,
    ) -> tuple[int, int]:
        """Write (name, datatype, array or raw (shape, bytes)) into a client's block → (block, header span)."""
        body = bytearray(offset)
        rows: list[list[Any]] = []
        for name, datatype, tensor in tensors:
            shape, data = tensor if isinstance(tensor, tuple) else (tensor.shape, tensor.tobytes())
            rows.append([name, WIRE[datatype], list(shape), len(body), len(data)])
            body += data
            body += bytes(-(len(body) - offset) % 64)
        header = request_header(request_id, rows, list(outputs), {})
        assert header is not None
        request = self.raw_request(bytes(body), header)
        self._rows[request[0]] = max(1, rows[0][2][0]) if rows and rows[0][2] else 1
        return request

    def raw_request(self, body: bytes, header: bytes) -> tuple[int, int]:
        """A block with any body and header."""
        block = self.client_slab.allocate(len(body) + len(header))
        assert block is not None
        block.memory[: len(body)] = body
        block.memory[len(body) : len(body) + len(header)] = header
        return block.ref, len(body) << 32 | len(header)

    def send(self, *requests: tuple[int, int], batch: int = 1, rows: int = 1) -> None:
        """One batch: BATCH_ITEM (5), key, batch, block, header, rows, index, count. `rows` are of raw requests."""
        for index, (ref, span) in enumerate(requests):
            self._next += 1
            own_rows = self._rows.get(ref, rows)
            self.writer.push(layout.record(5, self._next, batch, ref, span, own_rows, index, len(requests)))
        self.writer.publish()
        self.worker_bell.ring()

    def free(self, ref: int, then: tuple[tuple[int, int], int] | None = None) -> None:
        """FREE (6), with the block in word 3; `then` a request and the number of the batch that it is."""
        self.writer.push(layout.record(6, 0, 0, ref))
        if then is not None:
            self.send(then[0], batch=then[1])
        self.writer.publish()
        self.worker_bell.ring()

    def done(self) -> list[Done]:
        """What the worker has answered since the last time."""
        self.bell.clear()
        return [self._read(record) for record in self.reader.drain() if record[0] != 8]  # WANT

    def _read(self, record: tuple[int, ...]) -> Done:
        kind, key, batch, status, ref, span, *times = record
        assert kind == 7
        done = Done(key, batch, status, ref, tuple(times[:4]), "", {}, {})
        if not ref:
            return done
        block = self.results.open(ref)
        assert block is not None
        header = bytes(block[span >> 32 : (span >> 32) + (span & 0xFFFFFFFF)])
        if status:
            done.sentence = header.decode()
            return done
        outputs, done.parameters = msgpack.unpackb(header)
        for name, wire, shape, offset, nbytes in outputs:
            data = bytes(block[offset : offset + nbytes])
            done.offsets[name] = offset
            done.outputs[name] = data if wire == 13 else np.frombuffer(data, DTYPES[wire]).reshape(shape)
        return done


DTYPES = {1: "?", 3: "<u2", 8: "<i4", 9: "<i8", 10: "<f2", 11: "<f4", 14: "<u2"}


def strings(*elements: bytes) -> bytes:
    """The wire form of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def tensor_config(name: str, data_type: str, dims: Sequence[int], **fields: Any) -> dict[str, Any]:
    """An input or output in a model configuration."""
    return {"name": name, "data_type": data_type, "dims": list(dims), **fields}


def model_config(
    inputs: Sequence[dict[str, Any]],
    outputs: Sequence[dict[str, Any]],
    *,
    max_batch_size: int = 8,
    backend: str = "identity",
    parameters: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A finished model configuration, as far as a worker reads it."""
    return {
        "name": "m",
        "backend": backend,
        "max_batch_size": max_batch_size,
        "input": list(inputs),
        "output": list(outputs),
        "batch_input": [],
        "batch_output": [],
        "parameters": {key: {"string_value": value} for key, value in (parameters or {}).items()},
        "model_warmup": [],
        **fields,
    }


def model(config: dict[str, Any], file: str = "", backend_config: dict[str, str] | None = None) -> BackendModel:
    """The first instance of a model called m, as a backend is told of it."""
    return BackendModel("m", 1, "m_0_0", os.path.dirname(file), file, config, backend_config or {})


CPU = Device("KIND_CPU", 0, (0,))
CONFIG = model_config([tensor_config("INPUT0", "TYPE_FP32", [4])], [tensor_config("OUTPUT0", "TYPE_FP32", [4])])
VARIABLE = model_config([tensor_config("INPUT0", "TYPE_FP32", [-1])], [tensor_config("OUTPUT0", "TYPE_FP32", [-1])])
STRINGS = model_config([tensor_config("INPUT0", "TYPE_STRING", [1])], [tensor_config("OUTPUT0", "TYPE_STRING", [1])])
PAIR = model_config(
    [tensor_config("INPUT0", "TYPE_FP32", [4]), tensor_config("INPUT1", "TYPE_INT32", [2])],
    [tensor_config("OUTPUT0", "TYPE_FP32", [4]), tensor_config("OUTPUT1", "TYPE_INT32", [2])],
)


def rows(*values: float) -> Array:
    """A row of four equal FP32 numbers per value."""
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def loop_of(
    batcher: Batcher, config: dict[str, Any] = CONFIG, backend: Backend | None = None, *, may_run_again: bool = True
) -> Loop:
    if backend is None:
        backend = IdentityBackend()
        backend.load(model(config), CPU)
    return Loop(backend, Signature.from_config(config), "m_0_0", batcher.memory(), may_run_again=may_run_again)


class Returning(BatchedBackend):
    """Returns or raises what the test says; sees nothing of the inputs."""

    def __init__(self, result: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
        self._result = result

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        return ModelIO((), ())

    def load(self, model: BackendModel, device: Device) -> None: ...

    def unload(self) -> None: ...

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return self._result(inputs)


class PerRequest(Returning):
    """Answers each request by itself, with a parameter, as backends do that do not batch."""

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        for request in requests:
            if request.id == "bad":
                answers.fail(request.position, InvalidArgumentError("this one is bad"))
            else:
                answers.add(request, self.run(request.inputs), {"was": request.id})
