"""TorchServe's management API on a real server of TorchServe's command line: each call of the table, and its answer."""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.end_to_end.torchserve_listeners import TorchServe, ask, torchserve_command
from tests.end_to_end.torchserve_stubs import INFERENCE, MANAGEMENT, Stub

PROCESSING = "Processing worker updates..."
NO_WORKER = (
    " has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
ZERO = " registered with 0 initial workers. Use scale workers API to add workers for the model."


#: Says `ok`, or what it is where it is asked for that.
HANDLER = """
def handle(data, context):
    if data and context.get_request_header(0, "describe") == "True":
        context.set_response_header(0, "X-Told", "yes")
        return [{"inputs": [data == [{}], context.model_name]}]
    return data and ["ok"] * len(data)
"""


def write_archive(store: Path, name: str, version: str, file: str = "", code: str = HANDLER) -> None:
    """An archive of a handler."""
    manifest = {
        "createdOn": "28/11/2026 12:00:00", "runtime": "python", "archiverVersion": "0.12.0",
        "model": {"modelName": name, "handler": "handler.py", "modelVersion": version},
    }  # fmt: skip
    with zipfile.ZipFile(store / (file or f"{name}.mar"), "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", code)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    write_archive(store, "a", "1.0")
    write_archive(store, "a", "2.0", "a2.mar")
    write_archive(store, "b", "1.0")
    write_archive(store, "failing", "1.0", code="import nothing_of_this_name\n")
    write_archive(store, "exhausting", "1.0", code="def handle(data, context):\n    raise MemoryError\n")
    (store / "broken.mar").write_bytes(b"PK nothing")
    (store / "nameless").mkdir()
    (store / "nameless" / "handler.py").touch()
    with torchserve_command(tmp_path_factory.mktemp("server"), store, "", "--enable-model-api", "--dt") as served:
        yield served


def status(text: str) -> dict[str, str]:
    return {"status": text}


def fault(code: int, kind: str, message: str) -> dict[str, object]:
    return {"code": code, "type": kind, "message": message}


NOT_FOUND = fault(404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
NOT_ALLOWED = fault(405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document.")
NO_URL = fault(400, "BadRequestException", "Parameter url is required.")
LESS = fault(400, "BadRequestException", "max_worker cannot be less than min_worker.")


class Fault(NamedTuple):
    """An error of which the message is known in part."""

    kind: str
    words: str


#: Calls in the order in which they are made, each with its answer; None: any body.
CALLS: list[tuple[str, str, str, int, object]] = [
    ("GET", "/nope", "", 404, NOT_FOUND),
    ("GET", "/", "", 405, NOT_ALLOWED),
    ("OPTIONS", "/", "", 200, None),
    ("GET", "/api-description", "", 200, None),
    ("GET", "/predictions/a", "", 404, NOT_FOUND),
    ("PATCH", "/models", "", 405, NOT_ALLOWED),
    ("DELETE", "/models", "", 405, NOT_ALLOWED),
    ("POST", "/models/a", "", 405, NOT_ALLOWED),
    ("GET", "/models/a/1.0/set-default", "", 405, NOT_ALLOWED),
    ("GET", "/models", "", 200, {"models": []}),
    ("GET", "/models/a", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("GET", "/models/a/all", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("PUT", "/models/a", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("DELETE", "/models/a", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("PUT", "/models/a/1.0/set-default", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("GET", "/v1/models/a", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("POST", "/models", "", 400, NO_URL),
    ("POST", "/models?initial_workers=1", "", 400, NO_URL),
    ("POST", "/models", "{}", 400, NO_URL),
    ("POST", "/models?url=a.mar", "{}", 400, NO_URL),
    ("POST", "/models", "[1]", 400, Fault("BadRequestException", "must be a JSON object")),
    ("POST", "/models?url=", "", 404, fault(404, "ModelNotFoundException", "empty url")),
    ("POST", "/models?url=../a.mar", "", 404,
     fault(404, "ModelNotFoundException", "Relative path is not allowed in url: ../a.mar")),
    ("POST", "/models?url=c.mar", "", 404, fault(404, "ModelNotFoundException", "Model not found at: c.mar")),
    ("POST", "/models?url=a.mar&runtime=java", "", 400,
     fault(400, "BadRequestException", "Invalid RuntimeType value: java")),
    ("POST", "/models?url=a.mar&runtime=LSP", "", 400, Fault("BadRequestException", "Invalid RuntimeType value: LSP")),
    ("POST", "/models?url=a.mar&s3_sse_kms=true", "", 400, Fault("BadRequestException", "s3_sse_kms is not supported")),
    ("POST", "/models?url=broken.mar", "", 400,
     Fault("InvalidModelException", "Model name is not defined. Archive 'broken.mar' is refused")),
    ("POST", "/models?url=nameless", "", 400, Fault("InvalidModelException", "Model handler is not defined.")),
    ("POST", "/models?url=file:///elsewhere/a.mar", "", 500,
     fault(500, "InternalServerException", "Model file already exists a.mar")),
    ("POST", "/models?url=failing.mar&initial_workers=1", "", 500,
     Fault("InternalServerException", "Failed to start workers for model failing version: 1.0")),
    ("GET", "/models/failing", "", 404, fault(404, "ModelNotFoundException", "Model not found: failing")),
    ("POST", "/models?url=exhausting.mar&initial_workers=1", "", 507,
     Fault("InternalServerException", "Failed to start workers for model exhausting version: 1.0")),
    ("POST", "/models?url=a.mar", "", 200, status('Model "a" Version: 1.0' + ZERO)),
    ("POST", "/models?url=a.mar", "", 409,
     fault(409, "ConflictStatusException", "Model version 1.0 is already registered for model a")),
    ("POST", "/models", '{"url": "a2.mar", "initial_workers": 0}', 200, status('Model "a" Version: 2.0' + ZERO)),
    ("POST", "/models?url=b.mar&model_name=c", "", 200, status('Model "c" Version: 1.0' + ZERO)),
    ("GET", "/models?limit=1", "", 200, {"nextPageToken": "1", "models": [{"modelName": "a", "modelUrl": "a.mar"}]}),
    ("GET", "/models?limit=2&next_page_token=1", "", 200, {
        "models": [{"modelName": "c", "modelUrl": "b.mar"}],
    }),
    ("GET", "/models?limit=x&next_page_token=2", "", 200, {"models": []}),
    ("GET", "/models?limit=101", "", 200, None),
    ("GET", "/models?limit=-1", "", 200, None),
    ("GET", "/models?next_page_token=9", "", 200, {"models": []}),
    ("GET", "/models/a", "", 200, None),
    ("GET", "/models/a/2.0", "", 200, None),
    ("GET", "/models/a/all", "", 200, None),
    ("GET", "/models/a/3.0", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version: 3.0 does not exist for model: a")),
    ("PUT", "/models/a/3.0/set-default", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version 3.0 does not exist for model a")),
    ("GET", "/models/a/3.0/", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version: 3.0 does not exist for model: a")),
    ("PUT", "/models/a/2.0/set-default", "", 200,
     status('Default version successfully updated for model "a" to "2.0"')),
    ("DELETE", "/models/a", "", 403,
     fault(403, "InvalidModelVersionException", "Cannot remove default version for model a")),
    ("DELETE", "/models/a/2.0", "", 403,
     fault(403, "InvalidModelVersionException", "Cannot remove default version for model a")),
    ("DELETE", "/models/a/3.0", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version: 3.0 does not exist for model: a")),
    ("DELETE", "/models/a/1.0", "", 200, status('Model "a" unregistered')),
    ("DELETE", "/models/a", "", 200, status('Model "a" unregistered')),
    ("GET", "/models/a", "", 404, fault(404, "ModelNotFoundException", "Model not found: a")),
    ("PUT", "/models/c?min_worker=2&max_worker=1", "", 400, LESS),
    ("PUT", "/models/c?min_worker=-1", "", 400, Fault("BadRequestException", "min_worker must be a number of workers")),
    ("PUT", "/models/c/9?min_worker=1", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version: 9 does not exist for model: c")),
    ("PUT", "/models/c?min_worker=0&synchronous=true", "", 200, status("Workers scaled to 0 for model: c")),
    ("PUT", "/models/c/1.0?min_worker=0&synchronous=TRUE", "", 200,
     status("Workers scaled to 0 for model: c, version: 1.0")),
    ("PUT", "/models/c?min_worker=0", "", 202, status(PROCESSING)),
    ("PUT", "/models/c?min_worker=x&max_worker=0", "", 400, LESS),
    ("PUT", "/models/c?min_worker=0&model_version=1.0&number_gpu=1&timeout=3", "", 202, status(PROCESSING)),
    ("PUT", "/models/c?min_worker=0&model_version=9", "", 404,
     fault(404, "ModelVersionNotFoundException", "Model version: 9 does not exist for model: c")),
    ("PUT", "/models/c/1.0/set-default", "", 200,
     status('Default version successfully updated for model "c" to "1.0"')),
    ("POST", "/models/c/1.0/set-default", "", 405, NOT_ALLOWED),
    ("DELETE", "/models/c/1.0/set-default", "", 405, NOT_ALLOWED),
    ("GET", "/models/c?customized=false", "", 200, None),
    ("GET", "/models/c?customized=true", "", 503, fault(503, "ServiceUnavailableException",
     'Model "c" has no worker to serve describe request. Please use scale workers API to add workers.')),
    ("GET", "/models/c/all?customized=true", "", 200, None),
    ("GET", "/v1/models/c", "", 200, {"name": "c", "ready": False}),
    ("OPTIONS", "/models/c", "", 405, NOT_ALLOWED),
    ("PATCH", "/models/c", "", 405, NOT_ALLOWED),
    ("PUT", "/models", "", 405, NOT_ALLOWED),
    ("PUT", "/v1/models/c", "", 405, NOT_ALLOWED),
    ("GET", "/ping", "", 404, NOT_FOUND),
    ("GET", "/metrics", "", 404, NOT_FOUND),
    ("GET", "/models/", "", 200, {"models": [{"modelName": "c", "modelUrl": "b.mar"}]}),
    ("GET", "/models/c/1.0/more", "", 404, NOT_FOUND),
    ("POST", "/models?url=file:///nowhere/none.mar", "", 400,
     Fault("DownloadArchiveException", "Failed to download archive from: file:///nowhere/none.mar")),
    ("POST", "/models?url=ftp://host/none.mar", "", 404,
     fault(404, "ModelNotFoundException",
           "Given URL ftp://host/none.mar does not match any allowed URL(s)")),
    ("POST", "/models?url=b.mar&model_name=d&synchronous=false", "", 200, status('Model "d" Version: 1.0' + ZERO)),
    ("POST", "/models?url=b.mar&model_name=d&batch_size=x", "", 409,
     fault(409, "ConflictStatusException", "Model version 1.0 is already registered for model d")),
    ("DELETE", "/models/d?timeout=1", "", 200, status('Model "d" unregistered')),
    ("DELETE", "/models/d", "", 404, fault(404, "ModelNotFoundException", "Model not found: d")),
    ("DELETE", "/models/c/1.0?synchronous=true", "", 200, status('Model "c" unregistered')),
    ("PUT", "/models/c?min_worker=1", "", 404, fault(404, "ModelNotFoundException", "Model not found: c")),
]  # fmt: skip


def test_calls_in_their_order(served: TorchServe) -> None:
    assert len(CALLS) >= 80
    for number, (method, path, body, code, expected) in enumerate(CALLS):
        headers = {"Content-Type": "application/json"} if body else {}
        reply = served.manage(method, path, body.encode() or None, headers)
        shown = (number, method, path, reply.body)
        assert reply.status == code, shown
        assert reply.headers["Content-Type"] == "application/json", shown
        assert (reply.headers["Connection"] == "close") == (code >= 400), shown
        if isinstance(expected, Fault):
            assert (reply.json["code"], reply.json["type"]) == (code, expected.kind), shown
            assert expected.words in reply.json["message"], shown
        elif expected is not None:
            assert reply.json == expected, shown


def test_an_archive_is_registered_scaled_and_asked(served: TorchServe) -> None:
    no_worker = served.manage("POST", "/models?url=b.mar")
    assert no_worker.json == status('Model "b" Version: 1.0' + ZERO)
    for path, asked in (("/predictions/b", '"b"'), ("/predictions/b/1.0", '"b" Version 1.0"')):
        reply = served.ask("POST", path, b"x")
        expected = fault(503, "ServiceUnavailableException", f"Model {asked}{NO_WORKER}")
        assert (reply.status, reply.json) == (503, expected)
    made = served.manage("PUT", "/models/b?min_worker=1&synchronous=true")
    assert (made.status, made.json) == (200, status("Workers scaled to 1 for model: b"))
    for path in ("/predictions/b", "/predictions/b/1.0"):
        reply = served.ask("POST", path, b"x")
        assert (reply.status, reply.body) == (200, b"ok"), reply.body
    (told,) = served.manage("GET", "/models/b").json
    (worker,) = told["workers"]
    assert (told["minWorkers"], told["maxWorkers"], "customizedMetadata" in told) == (1, 1, False)
    assert (told["stateful"], told["maxNumSequence"], told["maxSequenceJobQueueSize"]) == (False, 0, 0)
    reply = served.manage("GET", "/models/b/1.0?customized=True")
    (customized,) = reply.json
    assert customized["customizedMetadata"] == {"inputs": [True, "b"]}
    assert (customized["modelName"], reply.headers["X-Told"]) == ("b", "yes")
    assert (worker["status"], told["modelUrl"], told["modelVersion"]) == ("READY", "b.mar", "1.0")
    assert served.manage("PUT", "/models/b?min_worker=0&max_worker=2&synchronous=true").status == 200
    (told,) = served.manage("GET", "/models/b").json
    assert (told["minWorkers"], told["maxWorkers"], told["workers"]) == (0, 2, [])
    sentence = 'Model "b" has no worker to serve describe request. Please use scale workers API to add workers.'
    reply = served.manage("GET", "/models/b?customized=true")
    assert reply.json == fault(503, "ServiceUnavailableException", sentence)
    gone = served.manage("DELETE", "/models/b")
    assert (gone.status, gone.json) == (200, status('Model "b" unregistered'))
    assert served.ask("POST", "/predictions/b", b"x").json["type"] == "ModelNotFoundException"


def test_metrics_are_empty_in_mode_log(served: TorchServe) -> None:
    reply = ask(served.metrics_port, "GET", "/metrics")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert ask(served.metrics_port, "GET", "/nope").json == NOT_FOUND


def test_tokens_guard_each_api_with_its_own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory, store = tmp_path_factory.mktemp("guarded"), tmp_path_factory.mktemp("store")
    write_archive(store, "a", "1.0")
    sentence = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
    refusal = fault(400, "InvalidKeyException", sentence)
    with torchserve_command(
        directory, store, "load_models=a.mar\ndefault_workers_per_model=1\nmetrics_mode=prometheus\n"
    ) as served:
        keys = json.loads((directory / "key_file.json").read_text())
        inference, management = (
            {"Authorization": f"Bearer {keys[each]['key']}"} for each in ("inference", "management")
        )
        for headers in ({}, management, {"Authorization": "Bearer nonsense"}):
            for path in ("/ping", "/predictions/a"):
                reply = served.ask("POST", path, b"x", headers)
                assert (reply.status, reply.json) == (400, refusal), path
        assert served.manage("GET", "/models", headers=inference).json == refusal
        assert served.manage("GET", "/models", headers=management).status == 200
        assert served.ask("POST", "/predictions/a", b"x", inference).body == b"ok"
        assert served.ask("GET", "/ping", headers=inference).status == 200
        page = ask(served.metrics_port, "GET", "/metrics").body.decode()
        found = {name: float(value) for name, value in re.findall(r"^(Requests\dXX)\{.*\} (.*)$", page, re.MULTILINE)}
        assert found == {"Requests2XX": 3, "Requests4XX": 7, "Requests5XX": 0}
        assert 'WorkerLoadTime{WorkerName="W-9000-a_1.0",Level="Host",' in page
        assert "PredictionTime{" in page
        denied = "PERMISSION_DENIED", sentence
        with Stub(served.grpc_inference_port, INFERENCE, {"authorization": management["Authorization"]}) as stub:
            assert stub.refusal("Ping") == stub.refusal("Predictions", model_name="a") == denied
        with Stub(served.grpc_inference_port, INFERENCE, {"authorization": inference["Authorization"]}) as stub:
            assert stub.ask("Predictions", model_name="a", input={"x": b"y"}).prediction == b"ok"
        with Stub(served.grpc_management_port, MANAGEMENT, {"authorization": inference["Authorization"]}) as stub:
            assert stub.refusal("ListModels") == denied
        with Stub(served.grpc_management_port, MANAGEMENT, {"authorization": management["Authorization"]}) as stub:
            assert stub.ask("DescribeModel", model_name="a").msg
            assert stub.refusal("RegisterModel", url="a.mar")[0] == "PERMISSION_DENIED"  # without enable_model_api
        unrenewed = fault(400, "InvalidKeyException", sentence.replace("Authorization", "Authentication"))
        for headers in ({}, inference, management):
            assert served.manage("GET", "/token?type=inference", headers=headers).json == unrenewed
        api = {"Authorization": f"Bearer {keys['API']['key']}"}
        assert served.manage("GET", "/token?type=other", headers=api).status == 400
        renewed = served.manage("GET", "/token?type=inference", headers=api)
        assert (renewed.status, renewed.body) == (200, b"\n")
        fresh = json.loads((directory / "key_file.json").read_text())
        assert {**fresh, "inference": None} == {**keys, "inference": None}
        assert served.ask("POST", "/predictions/a", b"x", inference).json == refusal
        inference = {"Authorization": f"Bearer {fresh['inference']['key']}"}
        assert served.ask("POST", "/predictions/a", b"x", inference).body == b"ok"
