"""The clients of a storm: each kind has a model and a way to ask it, and knows what the right answer is."""

import asyncio
import json
import socket
import struct
import time
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from shoal.frontend.grpc.messages import service
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import Server

MAX_BATCH_SIZE = 8
#: With little memory: a payload of LARGE_INTEGERS has a segment of its own, in the client's memory and in the worker's.
FLAGS = ("--shm-client-slab-mib=8", "--shm-worker-slab-mib=4", "--shm-oversize-mib=64")
#: 2.5 MiB, and 6 MB where the client reads slowly: the kernel takes four MiB of an answer off the server at once.
LARGE_INTEGERS, SLOW_INTEGERS = 655_360, 1_500_000
#: Of a slow reader's socket.
RECEIVE_BUFFER_BYTES = 65536
#: A slow reader takes so much at a time, and pauses for so long: that is its pace, and nothing is waited for.
SIP_BYTES, SIP_S = 65536, 0.002

_CONFIG = """
backend: "{backend}"
max_batch_size: {max_batch_size}
input {{ name: "A" data_type: TYPE_INT32 dims: [ {dims} ] }}
output {{ name: "B" data_type: TYPE_INT32 dims: [ {dims} ] }}
instance_group {{ count: {count} kind: KIND_CPU }}
parameters {{ key: "idempotent" value {{ string_value: "false" }} }}
"""
#: Answers the requests of a batch one after the other, while it executes them.
_PARTS = python_model("""
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""")
#: Asks another model, then keeps its GIL in native code for 20 ms.
_CALLER = """
import ctypes
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "A")) for each in requests]

    def answer(self, tensor):
        asked = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["B"], inputs=[tensor])
        answered = asked.exec()
        ctypes.PyDLL(None).usleep(20_000)
        if answered.has_error():
            return pb_utils.InferenceResponse(error=answered.error())
        return pb_utils.InferenceResponse(answered.output_tensors())
"""
#: A handler of TorchServe's.
_HANDLER = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""


class Answer(NamedTuple):
    """What came back for a request, the number of which was `number`."""

    number: int
    status: int
    body: bytes
    is_right: bool
    seconds: float
    is_last: bool = False  # the server ends the connection with it


class Cut(Exception):
    """A connection has ended before its answer."""


class Connection(Protocol):
    """A client's connection."""

    async def ask(self, number: int) -> Answer:
        """Send the request of this number and receive the answer. Raises Cut."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


Ask = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[Answer]]
#: Stands for the process that reads the repository, in the place of a model.
POLLER = "(the poller)"


class Kind(NamedTuple):
    """So many clients that ask a model in this way, each over a socket with such a buffer; 0: with the system's."""

    model: str
    num_clients: int
    ask: Ask | None  # None: over gRPC
    receive_buffer_bytes: int = 0
    pause_s: float = 0.0  # between an answer and the next request
    front_end: str = "lane"  # lane, road or grpc
    listener: str = "HTTPService"  # over HTTP, by its name in the log

    @property
    def models(self) -> tuple[str, ...]:
        """Those that have worked for a right answer."""
        return ("caller", "inner") if self.model == "caller" else (self.model,)

    async def connect(self, server: Server) -> Connection:
        """Open a connection to the server."""
        if self.ask is None:
            return await GrpcConnection.open(server.grpc_port, self.model)
        opened = socket.socket()
        try:
            if self.receive_buffer_bytes:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
            opened.setblocking(False)
            port = server.port_of(self.listener)
            await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
            return HttpConnection(self.ask, *await asyncio.open_connection(sock=opened))
        except OSError:
            opened.close()
            raise


class HttpConnection:
    """A connection over HTTP."""

    def __init__(self, ask: Ask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ask = ask
        self._reader = reader
        self._writer = writer

    async def ask(self, number: int) -> Answer:
        """Send and receive."""
        try:
            return await self._ask(self._reader, self._writer, number)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Cut from error

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


class GrpcConnection:
    """A connection over gRPC. UNAVAILABLE with a sentence of gRPC's own is the connection's end."""

    def __init__(self, channel: Any, model: str) -> None:
        self._channel = channel
        self._model = model
        self._infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    @classmethod
    async def open(cls, port: int, model: str) -> "GrpcConnection":
        """Connect. Raises ConnectionRefusedError where the server does not take the connection."""
        # A name of its own for each: channels with equal arguments share a connection.
        channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        )
        try:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_S)
        except asyncio.TimeoutError:
            await channel.close()
            raise ConnectionRefusedError(f"gRPC's port {port} takes no connection within {CONNECT_S:.0f} s") from None
        return cls(channel, model)

    async def ask(self, number: int) -> Answer:
        """Send and receive."""
        sent_s = time.monotonic()
        request = service.ModelInferRequest(model_name=self._model, id=str(number))
        request.inputs.add(name="A", datatype="INT32", shape=[1, 4])
        data = struct.pack("<4i", *_data(number))
        request.raw_input_contents.append(data)
        try:
            answer = service.ModelInferResponse.FromString(await self._infer(request.SerializeToString()))
        except grpc.aio.AioRpcError as error:
            sentence = error.details() or ""
            if error.code() is grpc.StatusCode.UNAVAILABLE and "model" not in sentence:
                raise Cut(sentence) from error
            status = {grpc.StatusCode.INTERNAL: 500, grpc.StatusCode.UNAVAILABLE: 503}.get(error.code(), 400)
            return Answer(number, status, sentence.encode(), False, time.monotonic() - sent_s)
        is_right = answer.id == str(number) and list(answer.raw_output_contents) == [data]
        return Answer(number, 200, str(answer).encode(), is_right, time.monotonic() - sent_s)

    def close(self) -> None:
        """End the connection."""
        _CLOSING.add(task := asyncio.ensure_future(self._channel.close()))
        task.add_done_callback(_CLOSING.discard)


#: Channels that are being closed, held until they are.
_CLOSING: set["asyncio.Future[None]"] = set()
#: For a gRPC connection: while an arbiter is replaced, connections wait in the listener's queue.
CONNECT_S = 30.0


def _data(number: int) -> list[int]:
    return [number, -number, 7, number ^ 0x5555]


def _send(writer: asyncio.StreamWriter, path: str, *pieces: bytes, fields: str = "") -> None:
    length = sum(map(len, pieces))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {length}\r\n\r\n"
    writer.writelines([head.encode(), *pieces])


async def _receive(reader: asyncio.StreamReader, *, slowly: bool = False) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    if not slowly:
        return status, await reader.readexactly(length)
    body = bytearray()
    while len(body) < length:
        piece = await reader.read(min(SIP_BYTES, length - len(body)))
        if not piece:
            raise asyncio.IncompleteReadError(bytes(body), length)
        body += piece
        await asyncio.sleep(SIP_S)
    return status, bytes(body)


def _integers(model: str, fields: str = "") -> Ask:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
        sent_s = time.monotonic()
        tensor = {"name": "A", "shape": [1, 4], "datatype": "INT32", "data": _data(number)}
        _send(writer, f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode(), fields=fields)
        status, body = await _receive(reader)
        is_right = status == 200 and json.loads(body)["outputs"][0]["data"] == _data(number)
        return Answer(number, status, body, is_right, time.monotonic() - sent_s)

    return ask


async def _generate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
    """Of a decoupled model, which answers once."""
    sent_s = time.monotonic()
    _send(writer, "/v2/models/parts/generate", json.dumps({"A": _data(number)}).encode())
    status, body = await _receive(reader)
    is_right = status == 200 and json.loads(body)["B"] == _data(number)
    return Answer(number, status, body, is_right, time.monotonic() - sent_s)


def _large(num_integers: int, *, slowly: bool = False) -> Ask:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
        sent_s = time.monotonic()
        binary = {"binary_data_size": 4 * num_integers}
        tensor = {"name": "A", "shape": [1, num_integers], "datatype": "INT32", "parameters": binary}
        header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        data = number.to_bytes(4, "little") * num_integers
        _send(
            writer, "/v2/models/large/infer", header, data, fields=f"Inference-Header-Content-Length: {len(header)}\r\n"
        )
        await writer.drain()
        status, body = await _receive(reader, slowly=slowly)
        return Answer(number, status, body, status == 200 and body.endswith(data), time.monotonic() - sent_s)

    return ask


async def _predict(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
    """Of a TorchServe handler, which gives back what it gets. An error ends the connection, as TorchServe's do."""
    sent_s = time.monotonic()
    data = json.dumps(_data(number)).encode()
    _send(writer, "/predictions/handler", data, fields="Content-Type: application/octet-stream\r\n")
    status, body = await _receive(reader)
    is_right = status == 200 and body == data
    return Answer(number, status, body, is_right, time.monotonic() - sent_s, is_last=status >= 400)


async def _index(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
    """Of the repository, for which the poller reads it."""
    sent_s = time.monotonic()
    writer.write(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    status, body = await _receive(reader)
    is_right = status == 200 and len(json.loads(body)) == NUM_MODELS
    return Answer(number, status, body, is_right, time.monotonic() - sent_s)


NUM_MODELS = 6
KINDS = (
    Kind("m", 34, _integers("m")),
    Kind("m", 4, _integers("m", "TE: trailers\r\n"), front_end="road"),
    Kind("m", 6, None, front_end="grpc"),
    Kind("parts", 12, _generate),
    Kind("large", 2, _large(LARGE_INTEGERS)),
    Kind("large", 2, _large(SLOW_INTEGERS, slowly=True), RECEIVE_BUFFER_BYTES),
    Kind("caller", 4, _integers("caller")),
    Kind("handler", 12, _predict, listener="TorchServe Inference"),
    Kind(POLLER, 1, _index, pause_s=0.2, front_end="road"),
)


def write_models(repository: Path) -> Path:
    """The repository that a storm needs."""
    ordinary = {"backend": "identity", "max_batch_size": MAX_BATCH_SIZE, "dims": "4", "count": 1}
    batching = "dynamic_batching { }\n"
    models = {
        "m": (_CONFIG.format(**ordinary | {"count": 2}) + batching, ""),
        "parts": (
            _CONFIG.format(**ordinary | {"backend": "python"})
            + "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
            + "model_transaction_policy { decoupled: true }\n",
            _PARTS,
        ),
        "large": (_CONFIG.format(**ordinary | {"dims": "-1"}) + batching, ""),
        "inner": (_CONFIG.format(**ordinary) + batching, ""),
        "caller": (_CONFIG.format(**ordinary | {"backend": "python"}) + batching, _CALLER),
    }
    for name, (config, source) in models.items():
        add_model(repository, name, config, source)
    return repository


def write_store(store: Path, limit_s: int) -> Path:
    """The model store that a storm needs: one archive, with two workers, whose executions may take `limit_s`."""
    store.mkdir(parents=True)
    model = {"modelName": "handler", "handler": "handler.py", "configFile": "config.yaml", "modelVersion": "1.0"}
    manifest = {"runtime": "python", "archiverVersion": "0.12.0", "createdOn": "29/11/2026 00:00:00", "model": model}
    with zipfile.ZipFile(store / "handler.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", _HANDLER)
        settings = {"minWorkers": 2, "maxWorkers": 2, "batchSize": MAX_BATCH_SIZE, "responseTimeout": limit_s}
        archive.writestr("config.yaml", json.dumps(settings))
    return store
