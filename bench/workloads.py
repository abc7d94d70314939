"""Workloads: the models, the requests in each protocol, and the right answers.

Pure but for `expected`, which runs the mlp in ONNX Runtime. Two protocols: Triton's (v2, with its binary extension)
and, for servers without one of their own, the plainest possible (a list of floats, or just the bytes).
"""

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, prod
from pathlib import Path

from bench.errors import BenchmarkError

_SAMPLES = Path(__file__).parents[1] / "model_repository"
_SERVED = Path(__file__).parent / "served"
MLP = _SAMPLES / "mlp" / "1" / "model.onnx"
MLP_THREADS = 1  # threads of ONNX Runtime: the cores are shared with the rest of the server and the load


#: Random numbers for a tensor; a larger one repeats them (drawing millions would take seconds).
_MOST_DRAWN = 1 << 18

#: The names under which a server knows the regions of shared memory of a request (regions.py).
INPUT_REGION, OUTPUT_REGION = "bench_input", "bench_output"


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model: inputs, all with the same numbers in them, and FP32 outputs; the identity unless it has a file."""

    name: str
    input_names: tuple[str, ...]
    dims: tuple[int, ...]
    output_names: tuple[str, ...]
    output_dims: tuple[int, ...]
    max_batch_size: int  # 0: never batched, as in config.pbtxt
    file: Path | None = None  # in ONNX, or a model.py of Triton's Python backend
    table_rows: int = 0  # rows of the table for its inputs, INT64 ids; 0: the inputs are FP32

    @property
    def is_python(self) -> bool:
        """Whether the model is a model.py, which only some servers run."""
        return self.file is not None and self.file.suffix == ".py"

    @property
    def datatype(self) -> str:
        """The datatype of the model's inputs."""
        return "INT64" if self.table_rows else "FP32"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one request's input tensor."""
        return (1, *self.dims) if self.max_batch_size else self.dims

    @property
    def values(self) -> "array[float] | array[int]":
        """The numbers of every request: random, and the same each time."""
        numbers, size = random.Random(1), prod(self.dims)
        if self.table_rows:
            return array("q", (numbers.randrange(self.table_rows) for _ in range(size)))
        block = array("f", (numbers.uniform(-1, 1) for _ in range(min(size, _MOST_DRAWN))))
        return (block * (size // len(block) + 1))[:size]


IDENTITY_16 = BenchModel("identity_16", ("INPUT0",), (16,), ("OUTPUT0",), (16,), 0)
IDENTITY_IMAGE = BenchModel("identity_image", ("INPUT0",), (3, 224, 224), ("OUTPUT0",), (3, 224, 224), 0)
IDENTITY_10MB = BenchModel("identity_10mb", ("INPUT0",), (2_500_000,), ("OUTPUT0",), (2_500_000,), 0)
MLP_512 = BenchModel("mlp", ("features",), (512,), ("scores",), (10,), 32, MLP)
ADD_SUB = BenchModel(
    "add_sub", ("INPUT0", "INPUT1"), (16,), ("OUTPUT0", "OUTPUT1"), (16,), 0, _SAMPLES / "add_sub" / "1" / "model.py"
)
#: A model whose own time decides the rate: clients of any cost measure the same.
WAITING = BenchModel("waiting", ("INPUT0",), (16,), ("OUTPUT0",), (16,), 0, _SERVED / "waiting_model.py")
#: A table's numbers, row by row: 0, 1, 2 … up to what a float holds exactly, and again.
TABLE_MODULO = 2**24
#: 512 MB. Triton has no backend for tables, so it is a model.py there.
EMBEDDING = BenchModel(
    "embedding", ("ids",), (64,), ("vectors",), (64, 128), 32, _SERVED / "embedding_model.py", table_rows=1_000_000
)
#: Small, and never asked: it shows what one more model costs.
DIGITS = BenchModel(
    "digits", ("image",), (64,), ("probabilities",), (10,), 32, _SAMPLES / "digits" / "1" / "model.onnx"
)
#: TorchServe's archives: a handler that returns the body as it came, and one that doubles the floats of a JSON list.
NOOP = BenchModel("noop", ("data",), (16,), ("prediction",), (16,), 0)
DOUBLED = BenchModel("doubled", ("data",), (16,), ("prediction",), (16,), 0)
MODELS = {model.name: model for model in (IDENTITY_16, IDENTITY_IMAGE, IDENTITY_10MB, MLP_512, ADD_SUB, EMBEDDING)}


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of the comparison."""

    name: str
    title: str
    model: BenchModel
    encoding: str  # "json", "binary", "regions" (of system shared memory), "grpc" or "body" (no more than the bytes)
    connections: int
    keep_alive: bool = True
    #: Whether all requests have the same bytes. As a rule each has an id and a trace of its own, as most programs send.
    repeats: bool = False
    streams: int = 1  # requests at a time on each connection, by HTTP/2
    slice_s: float = 0.5  # of a turn (slices.py)
    warm_up_slices: int = 2  # of load that does not count, before the first turn


WORKLOADS = (
    Workload("json-c1", "16 floats, JSON, 1 connection", IDENTITY_16, "json", 1),
    Workload("json-c10", "16 floats, JSON, 10 connections", IDENTITY_16, "json", 10),
    Workload(
        "json-close-c10", "16 floats, JSON, a new connection per request, 10 at once", IDENTITY_16, "json", 10, False
    ),
    Workload("binary-c1", "16 floats, binary, 1 connection", IDENTITY_16, "binary", 1),
    Workload("binary-c10", "16 floats, binary, 10 connections", IDENTITY_16, "binary", 10),
    Workload(
        "binary-c10-equal", "16 floats, binary, 10 connections, equal requests", IDENTITY_16, "binary", 10, repeats=True
    ),
    Workload("mlp-c10", "MLP 512→1024→10, batch ≤ 32, binary, 10 connections", MLP_512, "binary", 10),
    Workload("mlp-c64", "MLP 512→1024→10, batch ≤ 32, binary, 64 connections", MLP_512, "binary", 64),
    Workload("python-c16", "add_sub in Python, the same model.py, binary, 16 connections", ADD_SUB, "binary", 16),
    Workload(
        "embedding", "64 of 1,000,000 rows of 128 floats, batch ≤ 32, binary, 16 connections", EMBEDDING, "binary", 16
    ),
    Workload("image-c8", "602 KB in and out, binary, 8 connections", IDENTITY_IMAGE, "binary", 8),
    Workload("regions-c8", "602 KB in and out by system regions, 8 connections", IDENTITY_IMAGE, "regions", 8),
    Workload("large-c8", "10 MB in and out, binary, 8 connections", IDENTITY_10MB, "binary", 8, slice_s=2),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One POST request."""

    path: str
    headers: Mapping[str, str]
    body: bytes


#: Asked by GET: whether a server of Triton's protocol can answer.
READY = Request("/v2/health/ready", {}, b"")


def v2_request(model: BenchModel, encoding: str) -> Request:
    """An inference in Triton's protocol: JSON, or a JSON head and then the tensor's bytes, or a JSON that names regions
    of shared memory for both."""
    path = f"/v2/models/{model.name}/infer"
    values = model.values
    tensors: list[dict[str, object]] = [
        {"name": name, "shape": model.shape, "datatype": model.datatype} for name in model.input_names
    ]
    if encoding == "json":
        body = json.dumps({"inputs": [tensor | {"data": values.tolist()} for tensor in tensors]}).encode()
        return Request(path, {"Content-Type": "application/json"}, body)
    raw = values.tobytes()
    if encoding == "regions":
        places = (INPUT_REGION, len(raw)), (OUTPUT_REGION, prod(model.output_dims) * 4)
        source, target = (
            {"parameters": {"shared_memory_region": name, "shared_memory_byte_size": size}} for name, size in places
        )
        asked = {"inputs": [tensors[0] | source], "outputs": [{"name": model.output_names[0]} | target]}
        return Request(path, {"Content-Type": "application/json"}, json.dumps(asked).encode())
    inputs = dict.fromkeys(model.input_names, (model.datatype, model.shape, raw))
    return binary_request(model.name, inputs, model.output_names)


def binary_request(
    model: str, inputs: Mapping[str, tuple[str, Sequence[int], bytes]], outputs: Sequence[str]
) -> Request:
    """An inference whose inputs, each of a datatype and a shape, lie as bytes behind a JSON head; so do its outputs."""
    tensors = [
        {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
        for name, (datatype, shape, data) in inputs.items()
    ]
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Request(f"/v2/models/{model}/infer", headers, head + b"".join([data for *_, data in inputs.values()]))


#: The id in a request for `load.lua`, which puts another in its place each time.
PLACE_OF_ID = "0" * 16


def identified(request: Request) -> Request:
    """A request of Triton's protocol with an id added; a request of another protocol, which has none, unchanged."""
    if not request.path.startswith("/v2/"):
        return request
    member = b'"id": "%b", ' % PLACE_OF_ID.encode()
    headers = dict(request.headers)
    if (length := headers.get("Inference-Header-Content-Length")) is not None:
        headers["Inference-Header-Content-Length"] = str(int(length) + len(member))
    return Request(request.path, headers, request.body[:1] + member + request.body[1:])


def v2_answer(headers: Mapping[str, str], body: bytes) -> "array[float]":
    """The output tensors of an answer in Triton's protocol, joined; `headers` has lower-case names."""
    length = headers.get("inference-header-content-length")
    answer = json.loads(body if length is None else body[: int(length)])
    if length is None:
        return array("f", [number for output in answer["outputs"] for number in output["data"]])
    return array("f", body[int(length) :])


def plain_request(model: BenchModel, encoding: str) -> Request:
    """The floats as a JSON list, or as they lie in memory."""
    path = f"/{model.name}/{encoding}"
    if encoding == "json":
        return Request(path, {"Content-Type": "application/json"}, json.dumps(model.values.tolist()).encode())
    return Request(path, {"Content-Type": "application/octet-stream"}, model.values.tobytes())


def plain_answer(headers: Mapping[str, str], body: bytes) -> "array[float]":
    """The numbers in an answer that has nothing else, in JSON or as they lie in memory."""
    if headers.get("content-type", "").startswith("application/json"):
        return array("f", json.loads(body))
    return array("f", body)


def expected(model: BenchModel) -> "array[float]":
    """The right answer of a model."""
    if model is ADD_SUB:
        return array("f", [*(number + number for number in model.values), *(0.0 for _ in model.values)])
    if model is DOUBLED:
        return array("f", (2 * number for number in model.values))
    if model.table_rows:
        columns = model.output_dims[-1]
        return array(
            "f", ((int(row) * columns + column) % TABLE_MODULO for row in model.values for column in range(columns))
        )
    if model is not MLP_512:
        return array("f", model.values)
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(MLP), providers=["CPUExecutionProvider"])
    features = np.array(model.values, np.float32).reshape(1, -1)
    return array("f", session.run(None, {model.input_names[0]: features})[0].tobytes())


def verify(model: BenchModel, answer: "array[float]", right: "array[float]") -> None:
    """Raise BenchmarkError unless the answer is right: to the bit, or for the mlp as exactly as batches allow."""
    if model is not MLP_512:
        correct = answer == right
    else:
        near = (isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) for a, b in zip(answer, right, strict=False))
        correct = len(answer) == len(right) and all(near)
    if not correct:
        raise BenchmarkError(f"wrong answer: {answer[:3].tolist()} … instead of {right[:3].tolist()} …")
