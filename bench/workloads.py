"""What is asked: the models, the request bodies in the words of each protocol, and the right answers.

Pure but for `expected`, which runs the mlp in ONNX Runtime. Two protocols: Triton's (v2, with its binary extension)
and, for servers without one of their own, the plainest that would do (a list of floats, or just the bytes).
"""

import json
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, prod
from pathlib import Path

from bench.errors import BenchmarkError

_SAMPLES = Path(__file__).parents[1] / "model_repository"
_SERVED = Path(__file__).parent / "served"
MLP = _SAMPLES / "mlp" / "1" / "model.onnx"
MLP_THREADS = 1  # of ONNX Runtime, for every server: the cores are shared with the rest of the server and the load


@dataclass(frozen=True, slots=True)
class BenchModel:
    """Tensors in, all with the same numbers in them, FP32 tensors out; identity unless it has a file."""

    name: str
    input_names: tuple[str, ...]
    dims: tuple[int, ...]
    output_names: tuple[str, ...]
    output_dims: tuple[int, ...]
    max_batch_size: int  # 0: never batched, as in config.pbtxt
    file: Path | None = None  # in ONNX, or a model.py of Triton's Python backend
    table_rows: int = 0  # of the table that its inputs, INT64 ids, look into; otherwise they are FP32

    @property
    def is_python(self) -> bool:
        """Whether it is a model.py, which only some servers run."""
        return self.file is not None and self.file.suffix == ".py"

    @property
    def datatype(self) -> str:
        """Datatype of its inputs."""
        return "INT64" if self.table_rows else "FP32"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one request's input tensor."""
        return (1, *self.dims) if self.max_batch_size else self.dims

    @property
    def values(self) -> "array[float] | array[int]":
        """What every request asks: the same random numbers each time."""
        numbers = random.Random(1)
        if self.table_rows:
            return array("q", (numbers.randrange(self.table_rows) for _ in range(prod(self.dims))))
        return array("f", (numbers.uniform(-1, 1) for _ in range(prod(self.dims))))


IDENTITY_16 = BenchModel("identity_16", ("INPUT0",), (16,), ("OUTPUT0",), (16,), 0)
IDENTITY_IMAGE = BenchModel("identity_image", ("INPUT0",), (3, 224, 224), ("OUTPUT0",), (3, 224, 224), 0)
MLP_512 = BenchModel("mlp", ("features",), (512,), ("scores",), (10,), 32, MLP)
ADD_SUB = BenchModel(
    "add_sub", ("INPUT0", "INPUT1"), (16,), ("OUTPUT0", "OUTPUT1"), (16,), 0, _SAMPLES / "add_sub" / "1" / "model.py"
)
#: Number by number, row by row, a table has 0, 1, 2 … up to what a float holds exactly, and again.
TABLE_MODULO = 2**24
#: 512 MB. Triton has no backend for it, so it is a model.py there.
EMBEDDING = BenchModel(
    "embedding", ("ids",), (64,), ("vectors",), (64, 128), 32, _SERVED / "embedding_model.py", table_rows=1_000_000
)
#: Small, and never asked: what one more model costs.
DIGITS = BenchModel(
    "digits", ("image",), (64,), ("probabilities",), (10,), 32, _SAMPLES / "digits" / "1" / "model.onnx"
)
MODELS = {model.name: model for model in (IDENTITY_16, IDENTITY_IMAGE, MLP_512, ADD_SUB, EMBEDDING)}


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the comparison."""

    name: str
    title: str
    model: BenchModel
    encoding: str  # "json", "binary" or "grpc"
    connections: int
    keep_alive: bool = True
    streams: int = 1  # requests at a time on each connection, which takes HTTP/2


WORKLOADS = (
    Workload("json-c1", "16 floats, JSON, 1 connection", IDENTITY_16, "json", 1),
    Workload("json-c10", "16 floats, JSON, 10 connections", IDENTITY_16, "json", 10),
    Workload(
        "json-close-c10", "16 floats, JSON, a new connection per request, 10 at once", IDENTITY_16, "json", 10, False
    ),
    Workload("binary-c1", "16 floats, binary, 1 connection", IDENTITY_16, "binary", 1),
    Workload("binary-c10", "16 floats, binary, 10 connections", IDENTITY_16, "binary", 10),
    Workload("mlp-c10", "MLP 512→1024→10, batch ≤ 32, binary, 10 connections", MLP_512, "binary", 10),
    Workload("mlp-c64", "MLP 512→1024→10, batch ≤ 32, binary, 64 connections", MLP_512, "binary", 64),
    Workload("python-c16", "add_sub in Python, the same model.py, binary, 16 connections", ADD_SUB, "binary", 16),
    Workload(
        "embedding", "64 of 1,000,000 rows of 128 floats, batch ≤ 32, binary, 16 connections", EMBEDDING, "binary", 16
    ),
    Workload("image-c8", "602 KB in and out, binary, 8 connections", IDENTITY_IMAGE, "binary", 8),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One POST."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def v2_request(model: BenchModel, encoding: str) -> Request:
    """An inference in Triton's protocol: JSON, or a JSON head and then the tensor's bytes."""
    path = f"/v2/models/{model.name}/infer"
    values = model.values
    tensors: list[dict[str, object]] = [
        {"name": name, "shape": model.shape, "datatype": model.datatype} for name in model.input_names
    ]
    if encoding == "json":
        body = json.dumps({"inputs": [tensor | {"data": values.tolist()} for tensor in tensors]}).encode()
        return Request(path, {"Content-Type": "application/json"}, body)
    raw = values.tobytes()
    size = {"parameters": {"binary_data_size": len(raw)}}
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in model.output_names]
    head = json.dumps({"inputs": [tensor | size for tensor in tensors], "outputs": outputs}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Request(path, headers, head + raw * len(tensors))


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
    """The numbers in an answer that is nothing but these, in JSON or as they lie in memory."""
    if headers.get("content-type", "").startswith("application/json"):
        return array("f", json.loads(body))
    return array("f", body)


def expected(model: BenchModel) -> "array[float]":
    """The right answer."""
    if model is ADD_SUB:
        return array("f", [*(number + number for number in model.values), *(0.0 for _ in model.values)])
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
    """Raises BenchmarkError unless it is the right answer: to the bit, or for the mlp as exactly as batches allow."""
    if model is not MLP_512:
        correct = answer == right
    else:
        near = (isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) for a, b in zip(answer, right, strict=False))
        correct = len(answer) == len(right) and all(near)
    if not correct:
        raise BenchmarkError(f"wrong answer: {answer[:3].tolist()} … instead of {right[:3].tolist()} …")
