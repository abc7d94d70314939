"""The ways to ask a model on this host, for client_paths.py: each makes a call that is repeated.

A call has its input in the form that its way needs, and returns the output as an array. The model doubles its input.
"""

import functools
import itertools
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from numpy.typing import NDArray

from bench.background_load import raw
from bench.workloads import BenchModel, binary_request
from shoal import Client

Array: TypeAlias = NDArray[np.float32]
Call: TypeAlias = Callable[[], Array]
#: The most numbers in JSON, which take 20 bytes each: larger tensors would only make the run longer.
MAX_JSON_FLOATS = 65_536
_names = itertools.count()
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of the servers. `triton` is 0 where there is none."""

    http: int
    grpc: int
    triton: int
    path: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way to ask. `open` gets the model, and an ExitStack for the call's needs; None where it is not measured."""

    name: str
    title: str
    open: Callable[[Places, BenchModel, ExitStack], Call | None]


@functools.cache
def array_of(model: BenchModel) -> Array:
    """The input of every call."""
    return np.random.default_rng(1).random(model.shape, np.float32)


def save_onnx(file: Path) -> None:
    """Write the ONNX model: a row of numbers, doubled. It is cheap, so that the way is measured and not the model."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "numbers"]) for name in "xy")
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "double", [x], [y], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save(model, str(file))


def _alone(_places: Places, model: BenchModel, _stack: ExitStack) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model.file), options, providers=["CPUExecutionProvider"])
    inputs = {"x": array_of(model).copy()}

    def call() -> Array:
        output: Array = session.run(None, inputs)[0]
        return output

    return call


def _asked(triton: Any, client: Any, model: BenchModel, **binary: bool) -> Call:
    array = array_of(model)
    outputs = [triton.InferRequestedOutput("y", **{f"{name}_data": value for name, value in binary.items()})]

    def call() -> Array:
        given = triton.InferInput("x", list(array.shape), "FP32")
        given.set_data_from_numpy(array, **{f"{name}_data": value for name, value in binary.items()})
        answer: Array = client.infer(model.name, [given], outputs=outputs).as_numpy("y")
        return answer

    return call


def _http_client(port: int, stack: ExitStack) -> Any:
    return stack.enter_context(
        closing(tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=600.0))
    )


def _json(places: Places, model: BenchModel, stack: ExitStack) -> Call | None:
    if model.dims[0] > MAX_JSON_FLOATS:
        return None
    return _asked(tritonclient.http, _http_client(places.http, stack), model, binary=False)


def _binary(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    return _asked(tritonclient.http, _http_client(places.http, stack), model, binary=True)


def _grpc(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    client = stack.enter_context(closing(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{places.grpc}")))
    return _asked(tritonclient.grpc, client, model)


def _socket(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    """A call without a client library: the request's bytes are prepared, and of the answer only the end is found."""
    array = array_of(model)
    whole = raw(binary_request(model.name, {"x": ("FP32", array.shape, array.tobytes())}, ["y"]))
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", places.http)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer = bytearray(array.nbytes + 65536)

    def call() -> Array:
        connection.sendall(whole)
        end, total = 0, len(answer)
        while end < total:
            end += connection.recv_into(memoryview(answer)[end:total])
            if total == len(answer) and (body := answer.find(b"\r\n\r\n", 0, end) + 4) >= 4:
                length = _LENGTH.search(answer, 0, body)
                total = body + int(length[1]) if length else 0
        return np.frombuffer(answer[total - array.nbytes : total], np.float32).reshape(array.shape)

    return call


def _region(port: int, model: BenchModel, stack: ExitStack) -> Call:
    """A call with both tensors in regions of the client's shared memory, by Triton's own client."""
    client, array, places = _http_client(port, stack), array_of(model), []
    for _ in "xy":
        name = f"shoal-bench-{os.getpid()}-{next(_names)}"
        region = shm.create_shared_memory_region(name, f"/{name}", array.nbytes)
        stack.callback(shm.destroy_shared_memory_region, region)
        client.register_system_shared_memory(name, f"/{name}", array.nbytes)
        stack.callback(client.unregister_system_shared_memory, name)
        places.append((name, region))
    (given, x), (wanted, y) = places
    shm.set_shared_memory_region(x, [array])
    tensor = tritonclient.http.InferInput("x", list(array.shape), "FP32")
    tensor.set_shared_memory(given, array.nbytes)
    output = tritonclient.http.InferRequestedOutput("y", binary_data=True)
    output.set_shared_memory(wanted, array.nbytes)

    def call() -> Array:
        client.infer(model.name, [tensor], outputs=[output])
        answer: Array = shm.get_contents_as_numpy(y, np.float32, array.shape)
        return answer

    return call


def _shoal_region(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    return _region(places.http, model, stack)


def _triton_region(places: Places, model: BenchModel, stack: ExitStack) -> Call | None:
    return _region(places.triton, model, stack) if places.triton else None


def _client(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    client, inputs = stack.enter_context(Client(places.path)), {"x": array_of(model)}
    return lambda: client.infer(model.name, inputs)["y"]


def _client_in_place(places: Places, model: BenchModel, stack: ExitStack) -> Call:
    client = stack.enter_context(Client(places.path))
    array = client.empty(model.name, "x", model.shape)
    array[:] = array_of(model)
    inputs = {"x": array}
    return lambda: client.infer(model.name, inputs, copy=False)["y"]


ALONE, BINARY, TRITON_REGION, CLIENT, IN_PLACE = "alone", "binary", "triton-region", "client", "in-place"
WAYS: Sequence[Way] = (
    Way("json", "JSON over HTTP", _json),
    Way("grpc", "gRPC", _grpc),
    Way(BINARY, "binary over HTTP", _binary),
    Way("socket", "the same, bare socket", _socket),
    Way(TRITON_REGION, "Triton: region, HTTP", _triton_region),
    Way("region", "system region, HTTP", _shoal_region),
    Way(CLIENT, "Client", _client),
    Way(IN_PLACE, "Client, no copies", _client_in_place),
    Way(ALONE, "the model alone", _alone),
)
