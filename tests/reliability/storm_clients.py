"""The clients of a storm: each kind has a model and a way to ask it, and knows what the right answer is."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.repositories import add_model

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
_PARTS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("B", values)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
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


class Answer(NamedTuple):
    """What came back for a request, the number of which was `number`."""

    number: int
    status: int
    body: bytes
    is_right: bool
    seconds: float


Ask = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[Answer]]


class Kind(NamedTuple):
    """So many clients that ask a model in this way, each over a socket with such a buffer; 0: with the system's."""

    model: str
    num_clients: int
    ask: Ask
    receive_buffer_bytes: int = 0

    @property
    def models(self) -> tuple[str, ...]:
        """Those that have worked for a right answer."""
        return ("caller", "inner") if self.model == "caller" else (self.model,)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server."""
        opened = socket.socket()
        try:
            if self.receive_buffer_bytes:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
            opened.setblocking(False)
            await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=opened)
        except OSError:
            opened.close()
            raise


def _data(number: int) -> list[int]:
    return [number, -number, 7, number ^ 0x5555]


def _send(writer: asyncio.StreamWriter, path: str, *pieces: bytes, fields: str = "") -> None:
    length = sum(map(len, pieces))
    head = f"POST /v2/models/{path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {length}\r\n\r\n"
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


def _integers(model: str) -> Ask:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
        sent_s = time.monotonic()
        tensor = {"name": "A", "shape": [1, 4], "datatype": "INT32", "data": _data(number)}
        _send(writer, f"{model}/infer", json.dumps({"inputs": [tensor]}).encode())
        status, body = await _receive(reader)
        is_right = status == 200 and json.loads(body)["outputs"][0]["data"] == _data(number)
        return Answer(number, status, body, is_right, time.monotonic() - sent_s)

    return ask


async def _generate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Answer:
    """Of a decoupled model, which answers once."""
    sent_s = time.monotonic()
    _send(writer, "parts/generate", json.dumps({"A": _data(number)}).encode())
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
        _send(writer, "large/infer", header, data, fields=f"Inference-Header-Content-Length: {len(header)}\r\n")
        await writer.drain()
        status, body = await _receive(reader, slowly=slowly)
        return Answer(number, status, body, status == 200 and body.endswith(data), time.monotonic() - sent_s)

    return ask


#: Sixty-four connections in all.
KINDS = (
    Kind("m", 44, _integers("m")),
    Kind("parts", 12, _generate),
    Kind("large", 2, _large(LARGE_INTEGERS)),
    Kind("large", 2, _large(SLOW_INTEGERS, slowly=True), RECEIVE_BUFFER_BYTES),
    Kind("caller", 4, _integers("caller")),
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
