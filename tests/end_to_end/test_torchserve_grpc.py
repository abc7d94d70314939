"""TorchServe's gRPC services at their two ports, on a server as its command starts it, asked by stubs."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from shoal.triton_messages import service as triton
from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.test_torchserve_management import NO_WORKER
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.end_to_end.torchserve_stubs import INFERENCE, MANAGEMENT, Prediction, Stub
from tests.repository.torchserve.archives import mar

#: Gives back the names and values of a request's fields, or does what the field `data` says.
TOLD = """
import json, os
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return
    answers = []
    for index, row in enumerate(data):
        word = bytes(row.get("data", b""))
        if word == b"fail":
            raise ValueError("no")
        if word.isdigit():
            raise PredictionException("chosen", int(word))
        if word == b"exit":
            os._exit(3)
        if word == b"teapot":
            context.set_response_status(418, "short and stout", index)
            context.set_response_header(index, "no name of HTTP", "b")
        fields = {name: [type(value).__name__, bytes(value).decode()] for name, value in row.items()}
        fields["sequence"] = context.get_sequence_id(index)
        answers.append(word if word == b"" and not row else fields)
    return answers
"""
#: Answers in three parts; `fail` fails behind the first.
PARTS = """
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return
    send_intermediate_predict_response(["one "], context.request_ids, "", 200, context)
    if bytes(data[0]["data"]) == b"fail":
        raise ValueError("no")
    send_intermediate_predict_response(["two "], context.request_ids, "", 200, context)
    return ["three"]
"""
#: Answers as the envelope kservev2 does.
TENSORS = """
def handle(data, context):
    if data is None:
        return
    (row,) = data
    inputs = row["body"]["inputs"]
    return [{"id": row["body"]["id"], "model_name": "tensors", "model_version": "1.0", "outputs": inputs}]
"""
JOB = "\norg.pytorch.serve.http.InternalServerException"
NOT_FOUND = "org.pytorch.serve.archive.model.ModelNotFoundException"
VERSION_NOT_FOUND = "org.pytorch.serve.archive.model.ModelVersionNotFoundException"
PROPERTIES = """
load_models=told.mar,parts.mar,tensors.mar
default_workers_per_model=1
ts_open_inference_protocol=true
max_request_size=2000000
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    for name, code in (("told", TOLD), ("parts", PARTS), ("tensors", TENSORS), ("idle", TOLD)):
        mar(store / f"{name}.mar", {"h.py": code}, name=name, version="1.0", handler="h.py")
    mar(store / "told2.mar", {"h.py": TOLD}, name="told", version="2.0", handler="h.py")
    with torchserve_command(
        tmp_path_factory.mktemp("server"), store, PROPERTIES, "--enable-model-api", "--dt"
    ) as served:
        yield served


@pytest.fixture(scope="module")
def inference(served: TorchServe) -> Iterator[Stub]:
    with Stub(served.grpc_inference_port, INFERENCE) as stub:
        yield stub


@pytest.fixture(scope="module")
def management(served: TorchServe) -> Iterator[Stub]:
    with Stub(served.grpc_management_port, MANAGEMENT) as stub:
        yield stub


def fields(answer: Any) -> Any:
    return json.loads(answer.prediction)


def test_ping(inference: Stub) -> None:
    assert inference.ask("Ping").health == '{\n  "status": "Healthy"\n}'


def test_each_input_is_a_field_as_it_came(inference: Stub) -> None:
    asked = {"data": b"a", "b": "ü".encode(), "empty": b""}
    expected = {name: ["bytearray", value.decode()] for name, value in asked.items()} | {"sequence": ""}
    assert fields(inference.ask("Predictions", model_name="told", input=asked)) == expected
    with_version = inference.ask("Predictions", model_name="told", model_version="1.0", input=asked, sequenceId="s")
    assert (fields(with_version), with_version.sequenceId) == (expected | {"sequence": "s"}, "s")
    assert inference.ask("Predictions", model_name="told").prediction == b""
    large = {"data": b"x" * 1_500_000}  # received in shared memory
    assert fields(inference.ask("Predictions", model_name="told", input=large))["data"][1] == "x" * 1_500_000


def test_a_status_that_a_handler_has_set_is_not_the_calls(inference: Stub) -> None:
    assert fields(inference.ask("Predictions", model_name="told", input={"data": b"teapot"}))["data"]


@pytest.mark.parametrize(
    ("asked", "status", "details"),
    [
        ({"model_name": "none"}, "INTERNAL", f"Model not found: none\n{NOT_FOUND}"),
        ({"model_name": "told", "model_version": "9"}, "INTERNAL",
         f"Model version: 9 does not exist for model: told\n{VERSION_NOT_FOUND}"),
        ({}, "INTERNAL", "Parameter model_name is required.\nBadRequestException.()"),
        ({"model_name": "told", "input": {"data": b"fail"}}, "UNAVAILABLE", "Prediction failed" + JOB),
        *(
            ({"model_name": "told", "input": {"data": str(code).encode()}}, status, "chosen" + JOB)
            for code, status in (
                (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
                (409, "ABORTED"), (416, "OUT_OF_RANGE"), (418, "FAILED_PRECONDITION"), (429, "RESOURCE_EXHAUSTED"),
                (499, "CANCELLED"), (500, "INTERNAL"), (501, "UNIMPLEMENTED"), (503, "UNAVAILABLE"),
                (504, "DEADLINE_EXCEEDED"), (599, "INTERNAL"),
            )
        ),
        ({"model_name": "told", "input": {"data": b"x" * 2_000_000}}, "RESOURCE_EXHAUSTED",
         "gRPC message exceeds maximum size 2000000: 2000020"),
        ({"model_name": "told", "input": {"data": b"exit"}}, "INTERNAL", "Worker died." + JOB),
    ],
)  # fmt: skip
def test_refusals(inference: Stub, asked: Any, status: str, details: str) -> None:
    assert inference.refusal("Predictions", **asked) == (status, details)


def test_parts_are_a_stream_and_for_a_unary_call_one_answer(inference: Stub) -> None:
    asked: Any = {"model_name": "parts", "input": {"data": b"x"}}
    parts = [each.prediction for each in inference.stream("StreamPredictions", **asked)]
    assert parts == [b"one ", b"two ", b"three"]
    assert inference.ask("Predictions", **asked).prediction == b"one two three"
    whole = list(inference.stream("StreamPredictions", model_name="told", input={"b": b"x"}))  # has no parts
    assert [fields(each) for each in whole] == [{"b": ["bytearray", "x"], "sequence": ""}]


@pytest.mark.parametrize(
    ("asked", "parts", "status", "details"),
    [
        ({"model_name": "parts", "input": {"data": b"fail"}}, 1, "UNAVAILABLE", "Prediction failed" + JOB),
        ({"model_name": "told", "input": {"data": b"409"}}, 0, "ABORTED", "chosen" + JOB),
        ({"model_name": "none"}, 0, "INTERNAL", f"Model not found: none\n{NOT_FOUND}"),
    ],
)
def test_an_error_ends_a_stream_of_parts(inference: Stub, asked: Any, parts: int, status: str, details: str) -> None:
    came: list[Any] = []
    with pytest.raises(grpc.RpcError) as raised:
        came.extend(inference.stream("StreamPredictions", **asked))
    assert (len(came), raised.value.code().name, raised.value.details()) == (parts, status, details)


def test_a_stream_both_ways_goes_on_after_an_error(inference: Stub) -> None:
    words = [b"a", b"fail", b"b"]
    requests = [Prediction(model_name="told", sequenceId="s1", input={"data": word}) for word in words]
    requests.append(Prediction(model_name="none", sequenceId="s2"))
    first, failed, second, unknown = inference.converse("StreamPredictions2", requests)
    assert [fields(each)["data"][1] for each in (first, second)] == ["a", "b"]
    assert [fields(each)["sequence"] for each in (first, second)] == ["s1", "s1"]
    assert [each.sequenceId for each in (first, failed, second, unknown)] == ["s1", "s1", "s1", "s2"]
    assert [each.HasField("status") for each in (first, failed, second, unknown)] == [False, True, False, True]
    assert (failed.status.code, failed.status.message) == (14, "Prediction failed")
    assert (unknown.status.code, unknown.status.message) == (13, "Model not found: none")


def test_models_are_registered_scaled_described_and_unregistered(inference: Stub, management: Stub) -> None:
    def told(rpc: str, **asked: Any) -> str:
        return str(management.ask(rpc, **asked).msg)

    assert told("RegisterModel", url="told2.mar", initial_workers=1, synchronous=True) == (
        'Model "told" Version: 2.0 registered with 1 initial workers'
    )
    assert told("RegisterModel", url="idle.mar") == "Processing worker updates..."  # 1 worker by the configuration
    assert told("ScaleWorker", model_name="told", model_version="2.0", min_worker=1, synchronous=True) == (
        "Workers scaled to 1 for model: told, version: 2.0"
    )
    assert told("ScaleWorker", model_name="told") == "Processing worker updates..."
    assert told("SetDefault", model_name="told", model_version="2.0") == (
        'Default version successfully updated for model "told" to "2.0"'
    )
    assert told("UnregisterModel", model_name="told", model_version="1.0") == 'Model "told" unregistered'
    (described,) = json.loads(told("DescribeModel", model_name="told"))
    assert (described["modelVersion"], described["minWorkers"]) == ("2.0", 1)
    assert fields(inference.ask("Predictions", model_name="told", input={"b": b""}))["b"] == ["bytearray", ""]
    listed = json.loads(told("ListModels", limit=1))
    assert listed == {"nextPageToken": "1", "models": [{"modelName": "idle", "modelUrl": "idle.mar"}]}
    assert len(json.loads(told("ListModels"))["models"]) == 4
    assert told("UnregisterModel", model_name="idle") == 'Model "idle" unregistered'


@pytest.mark.parametrize(
    ("rpc", "asked", "status", "details"),
    [
        ("RegisterModel", {}, "INVALID_ARGUMENT",
         "Parameter url is required.\norg.pytorch.serve.http.BadRequestException"),
        ("RegisterModel", {"url": "x.mar"}, "NOT_FOUND", f"Model not found at: x.mar\n{NOT_FOUND}"),
        ("RegisterModel", {"url": "parts.mar"}, "ABORTED",
         "Model version 1.0 is already registered for model parts\norg.pytorch.serve.http.ConflictStatusException"),
        ("DescribeModel", {"model_name": "x"}, "NOT_FOUND", f"Model not found: x\n{NOT_FOUND}"),
        ("DescribeModel", {"model_name": "parts", "model_version": "9"}, "NOT_FOUND",
         f"Model version: 9 does not exist for model: parts\n{VERSION_NOT_FOUND}"),
        ("ScaleWorker", {"model_name": "x"}, "NOT_FOUND", None),
        ("ScaleWorker", {"model_name": "parts", "min_worker": 2, "max_worker": 1}, "INVALID_ARGUMENT",
         "max_worker cannot be less than min_worker.\norg.pytorch.serve.http.BadRequestException"),
        ("SetDefault", {"model_name": "parts", "model_version": "9"}, "NOT_FOUND",
         f"Model version 9 does not exist for model parts\n{VERSION_NOT_FOUND}"),
        ("UnregisterModel", {"model_name": "x"}, "NOT_FOUND", f"Model not found: x\n{NOT_FOUND}"),
        ("UnregisterModel", {}, "INVALID_ARGUMENT",
         "Parameter model_name is required.\norg.pytorch.serve.http.BadRequestException"),
    ],
)  # fmt: skip
def test_refusals_of_management(management: Stub, rpc: str, asked: Any, status: str, details: str | None) -> None:
    found = management.refusal(rpc, **asked)
    assert found == (status, found[1] if details is None else details)


def test_each_port_has_its_own_services(served: TorchServe) -> None:
    with Stub(served.grpc_management_port, INFERENCE) as stub:
        assert stub.refusal("Ping")[0] == "UNIMPLEMENTED"
    with Stub(served.grpc_inference_port, MANAGEMENT) as stub:
        assert stub.refusal("ListModels")[0] == "UNIMPLEMENTED"


def test_a_model_without_workers(served: TorchServe, inference: Stub, management: Stub) -> None:
    assert served.manage("PUT", "/models/tensors?min_worker=0&synchronous=true").status == 200
    found = inference.refusal("Predictions", model_name="tensors", input={"data": b""})
    assert found == ("INTERNAL", f'Model "tensors"{NO_WORKER}\nInternalServerException.()')
    assert management.ask("ScaleWorker", model_name="tensors", synchronous=True).msg == (
        "Workers scaled to 1 for model: tensors"
    )


def test_the_open_inference_protocol_under_torchserves_name(served: TorchServe) -> None:
    path = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/"
    pb = triton()
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_inference_port}") as channel:

        def ask(rpc: str, **asked: Any) -> Any:
            request, response = getattr(pb, f"{rpc}Request"), getattr(pb, f"{rpc}Response")
            call = channel.unary_unary(path + rpc, request.SerializeToString, response.FromString)
            return call(request(**asked), timeout=DEADLINE_S)

        assert (ask("ServerLive").live, ask("ServerReady").ready) == (True, True)
        assert ask("ModelReady", name="tensors").ready
        metadata = ask("ModelMetadata", name="tensors")
        assert (metadata.name, list(metadata.versions)) == ("tensors", ["1.0"])
        numbers: Any = {"name": "n", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1.5, -2]}}
        texts: Any = {"name": "t", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"\xff"]}}
        answer = ask("ModelInfer", model_name="tensors", id="7", inputs=[numbers, texts])
        assert (answer.id, answer.model_name, answer.model_version) == ("7", "tensors", "1.0")
        assert list(answer.outputs[0].contents.fp32_contents) == [1.5, -2]
        assert list(answer.outputs[1].contents.bytes_contents) == [b"/w=="]
        for rpc, asked, details in (
            ("ServerMetadata", {}, None),
            ("ModelReady", {"name": "x"}, f"Model not found: x\n{NOT_FOUND}"),
            ("ModelMetadata", {}, "Parameter model_name is required.\nBadRequestException.()"),
            ("ModelInfer", {"model_name": "x"}, f"Model not found: x\n{NOT_FOUND}"),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                ask(rpc, **asked)
            assert details is None or raised.value.details() == details, rpc
