"""Triton's own Python client, unchanged, against every sample model: its answers are ONNX Runtime's own."""

import asyncio
import gzip
import http.client
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import tensors
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, serving

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(7)
IMAGES: Array = np.load(Path(__file__).parents[1] / "data" / "held_out_digits.npz")["images"].astype(np.float32)


def element_wise(function: Callable[[Any], Any], array: Array) -> Array:
    result: Array = np.vectorize(function, otypes=[object])(array)
    return result


def texts(numbers: Array) -> Array:
    return element_wise(lambda number: str(number).encode(), numbers)


NUMBERS: Array = RANDOM.integers(-1000, 1000, (2, 3, 16), np.int32)
#: Model → what to send: batches of one and of several rows, the largest that the model takes among them.
REQUESTS: list[tuple[str, dict[str, Array]]] = [
    ("simple", {"INPUT0": NUMBERS[0], "INPUT1": NUMBERS[1]}),
    ("simple", {"INPUT0": NUMBERS[0, :1], "INPUT1": NUMBERS[1, :1]}),
    ("simple_string", {"INPUT0": texts(NUMBERS[0]), "INPUT1": texts(NUMBERS[1])}),
    ("simple_identity", {"INPUT0": np.array([["", "a b", 'é\n"€\\'], ["\0", "x" * 1000, "7"]], np.object_)}),
    ("mlp", {"features": RANDOM.standard_normal((1, 512), np.float32)}),
    ("mlp", {"features": RANDOM.standard_normal((32, 512), np.float32)}),
    ("digits", {"image": IMAGES[:1]}),
    ("digits", {"image": IMAGES[:64]}),
    ("encoder", {"input_ids": np.array([[7, 300], [5, 0]]), "attention_mask": np.array([[1, 1], [1, 0]])}),
]
OUTPUTS = {
    "simple": ["OUTPUT0", "OUTPUT1"],
    "simple_string": ["OUTPUT0", "OUTPUT1"],
    "simple_identity": ["OUTPUT0"],
    "mlp": ["scores"],
    "digits": ["label", "probabilities"],
    "encoder": ["embedding", "logits"],
}
SESSIONS = {
    path.parts[-3]: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for path in SAMPLES.glob("*/1/model.onnx")
}


def as_bytes(array: Array) -> Array:
    """JSON's strings and binary's bytes as one."""
    if array.dtype != np.object_:
        return array
    return element_wise(lambda text: text.encode() if isinstance(text, str) else text, array)


def reference(model: str, inputs: dict[str, Array]) -> list[Array]:
    """The outputs as ONNX Runtime computes them in this process; the identity model's are its inputs."""
    if model not in SESSIONS:
        return list(inputs.values())
    plain = {
        name: element_wise(lambda text: text.decode() if isinstance(text, bytes) else text, array)
        if array.dtype == np.object_
        else array
        for name, array in inputs.items()
    }
    results: Any = list(SESSIONS[model].run(OUTPUTS[model], plain))
    if model == "digits":
        results[0] = results[0][:, np.newaxis]  # its configuration shows the label as [ 1 ]
    return list(results)


def to_ask(model: str, binary: bool) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS[model]]


def array_of(result: triton.InferResult, name: str) -> Array:
    array: Array | None = result.as_numpy(name)
    assert array is not None, f"no output '{name}'"
    return array


def check(result: triton.InferResult, model: str, inputs: dict[str, Array]) -> None:
    for name, expected in zip(OUTPUTS[model], reference(model, inputs), strict=True):
        actual = array_of(result, name)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if expected.dtype == np.float32:
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(as_bytes(actual), as_bytes(expected))


@pytest.fixture(scope="module")
def client(samples: Server) -> Iterator[triton.InferenceServerClient]:
    """One connection."""
    opened = triton.InferenceServerClient(samples.url, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S)
    yield opened
    opened.close()


# ---------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize("binary_output", [True, False], ids=["binary-out", "json-out"])
@pytest.mark.parametrize("binary_input", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize(("model", "inputs"), REQUESTS)
def test_infer(
    client: triton.InferenceServerClient,
    model: str,
    inputs: dict[str, Array],
    binary_input: bool,
    binary_output: bool,
) -> None:
    result = client.infer(model, tensors(inputs, binary=binary_input), outputs=to_ask(model, binary_output))
    check(result, model, inputs)
    kinds = {("data" in output, "parameters" in output) for output in result.get_response()["outputs"]}
    assert kinds == {(not binary_output, binary_output)}


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_async_infer(samples: Server, binary: bool) -> None:
    with triton.InferenceServerClient(samples.url, concurrency=8, network_timeout=DEADLINE_S) as client:
        sent = [
            client.async_infer(model, tensors(inputs, binary=binary), outputs=to_ask(model, binary))
            for model, inputs in REQUESTS
        ]
        for (model, inputs), request in zip(REQUESTS, sent, strict=True):
            check(request.get_result(), model, inputs)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_asyncio(samples: Server, binary: bool) -> None:
    async def ask_all() -> list[Any]:
        async with triton_aio.InferenceServerClient(samples.url) as client:
            assert await client.is_server_ready()
            sent = [
                client.infer(model, tensors(inputs, binary=binary), outputs=to_ask(model, binary))
                for model, inputs in REQUESTS
            ]
            return list(await asyncio.gather(*sent))

    for (model, inputs), result in zip(REQUESTS, asyncio.run(ask_all()), strict=True):
        check(result, model, inputs)


def test_digits_are_recognised_and_named(client: triton.InferenceServerClient) -> None:
    inputs = tensors({"image": IMAGES[:5]})
    best = [triton.InferRequestedOutput("probabilities", class_count=2), triton.InferRequestedOutput("label")]
    result = client.infer("digits", inputs, outputs=best)
    classes, labels = array_of(result, "probabilities"), array_of(result, "label")
    _, probabilities = reference("digits", {"image": IMAGES[:5]})
    names = (SAMPLES / "digits" / "labels.txt").read_text().split()
    assert classes.shape == (5, 2)
    for row, (label, expected) in enumerate(zip(labels[:, 0], probabilities, strict=True)):
        order = np.argsort(-expected)[:2]
        value, index, name = classes[row, 0].decode().split(":")
        assert (int(index), name, label) == (order[0], names[order[0]], order[0])
        assert float(value) == pytest.approx(expected[order[0]], abs=1e-6)
        assert classes[row, 1].decode().split(":")[1:] == [str(order[1]), names[order[1]]]


# ---------------------------------------------------------------------------------------------------------------
# Many and large


def number_request(number: int) -> list[triton.InferInput]:
    left, right = np.full((1, 16), number, np.int32), np.arange(16, dtype=np.int32)[np.newaxis]
    return tensors({"INPUT0": left, "INPUT1": right})


def check_number(result: triton.InferResult, number: int) -> None:
    assert array_of(result, "OUTPUT0").tolist() == [list(range(number, number + 16))]
    assert array_of(result, "OUTPUT1").tolist() == [list(range(number, number - 16, -1))]


def test_concurrent_requests_get_their_own_answers(samples: Server) -> None:
    with triton.InferenceServerClient(samples.url, concurrency=64, network_timeout=DEADLINE_S) as client:
        sent = [client.async_infer("simple", number_request(100 * number)) for number in range(64)]
        for number, request in enumerate(sent):
            check_number(request.get_result(), 100 * number)


def test_thousands_of_requests_on_one_connection(client: triton.InferenceServerClient) -> None:
    """More than any slab has blocks: one that is not given back would be missed."""
    for number in range(1500):
        check_number(client.infer("simple", number_request(number), request_id=str(number)), number)


def test_refused_requests_leave_nothing_behind(client: triton.InferenceServerClient) -> None:
    """Errors from the model itself, more of them than any slab has blocks: their blocks must come back too."""
    words = np.array([["one"] * 16], np.object_)
    inputs = tensors({"INPUT0": words, "INPUT1": words})
    for _ in range(300):
        with pytest.raises(InferenceServerException) as refusal:
            client.infer("simple_string", inputs)
        assert refusal.value.status() == "500"
    model, inputs_it_takes = REQUESTS[2]
    check(client.infer(model, tensors(inputs_it_takes)), model, inputs_it_takes)


SIZES = [0, 1, 3, 63, 64, 65, 1000, 4095, 4097, 65536, 70_001, 1 << 20, (1 << 20) + 1, 3_000_000, 8 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_strings_of_every_size(client: triton.InferenceServerClient, size: int) -> None:
    text = bytes(range(256)) * (size // 256 + 1)
    inputs = {"INPUT0": np.array([[text[:size]]], np.object_)}
    result = client.infer("simple_identity", tensors(inputs))
    assert array_of(result, "OUTPUT0").tolist() == [[text[:size]]]


def test_large_tensors_again_and_again(tmp_path: Path) -> None:
    """Up to 8 MB there and back, every size another: 60 times more than any slab holds, were they not given back."""
    add_model(tmp_path, "wide", config_text("identity", "INPUT0 FP32 -1", "OUTPUT0 FP32 -1", count=1))
    with serving(tmp_path) as server, triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        for number in range(60):
            array = np.full(1 + (number * 104_729) % 2_000_000, number, np.float32)
            actual = array_of(client.infer("wide", tensors({"INPUT0": array})), "OUTPUT0")
            assert actual.shape == array.shape
            assert (actual == number).all()


# ---------------------------------------------------------------------------------------------------------------
# The rest of the client


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert all(client.is_model_ready(model) and client.is_model_ready(model, "1") for model in OUTPUTS)
    assert not client.is_model_ready("simple", "2")
    assert not client.is_model_ready("nobody")


def test_statistics_count_what_was_asked(client: triton.InferenceServerClient) -> None:
    def figures() -> dict[str, Any]:
        (model,) = client.get_inference_statistics("digits", "1")["model_stats"]
        return {
            "inferences": model["inference_count"],
            "executions": model["execution_count"],
            "of five": sum(row["compute_infer"]["count"] for row in model["batch_stats"] if row["batch_size"] == 5),
            **{name: model["inference_stats"][name]["count"] for name in ("success", "fail", "queue", "compute_infer")},
        }

    before = figures()
    for _ in range(3):
        client.infer("digits", tensors({"image": IMAGES[:5]}))
    with pytest.raises(InferenceServerException):
        client.infer("digits", tensors({"image": IMAGES[:65]}))  # refused at the door: counted nowhere
    after = figures()
    assert {name: after[name] - before[name] for name in after} == {
        "inferences": 15, "executions": 3, "of five": 3, "success": 3, "fail": 0, "queue": 3, "compute_infer": 3,
    }  # fmt: skip
    listed = client.get_inference_statistics()["model_stats"]
    assert [model["name"] for model in listed] == sorted(path.parent.name for path in SAMPLES.glob("*/config.pbtxt"))


def test_request_ids_headers_and_query(client: triton.InferenceServerClient) -> None:
    model, inputs = REQUESTS[0]
    result = client.infer(
        model,
        tensors(inputs),
        request_id="r-é-1",
        headers={"X-Request-Start": "1", "Authorization": "Bearer none"},
        query_params={"trace": "on", "tag": ["a b", "ü/&?"]},
        parameters={"color": "blue", "depth": 3, "fast": True, "ratio": 0.5},
        priority=1,
        timeout=10_000_000,
    )
    check(result, model, inputs)
    assert result.get_response()["id"] == "r-é-1"
    assert client.get_model_metadata(model, headers={"X-A": "1"}, query_params={"a": 1})["name"] == model


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize(("model", "inputs"), REQUESTS[::2])
def test_compression(
    client: triton.InferenceServerClient, model: str, inputs: dict[str, Array], algorithm: str
) -> None:
    for request, response in [(algorithm, None), (None, algorithm), (algorithm, algorithm)]:
        result = client.infer(
            model,
            tensors(inputs),
            outputs=to_ask(model, True),
            request_compression_algorithm=request,
            response_compression_algorithm=response,
        )
        check(result, model, inputs)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [("gzip", "gzip"), ("deflate", "deflate"), ("deflate, gzip", "deflate"), ("deflate;q=0.5, gzip", "gzip")],
)
def test_responses_are_compressed_as_asked(samples: Server, accepted: str, chosen: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", samples.http_port, timeout=DEADLINE_S)
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["a" * 20_000]}
    body, path = json.dumps({"inputs": [tensor]}), "/v2/models/simple_identity/infer"
    connection.request("POST", path, body)
    connection.getresponse().read()  # a lane sends the first long answer of a model as it is: only then it knows
    connection.request("POST", path, body, {"Accept-Encoding": accepted})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert (response.status, response.getheader("Content-Encoding")) == (200, chosen)
    assert len(content) < 500
    plain = gzip.decompress(content) if chosen == "gzip" else zlib.decompress(content)
    assert json.loads(plain)["outputs"][0]["data"] == ["a" * 20_000]
