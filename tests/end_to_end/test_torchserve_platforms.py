"""The ways in which KServe and SageMaker start TorchServe, with their own configuration files but for paths and ports.

And the request envelopes, which a configuration gives to all models, and archives' requirements.
"""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.end_to_end.server import DEADLINE_S, Server
from tests.end_to_end.torchserve_listeners import started_command
from tests.end_to_end.torchserve_stubs import INFERENCE, Stub
from tests.environments.places import write_wheel
from tests.repository.torchserve.archives import folder, mar

#: KServe's, of its PyTorch runtime.
KSERVE = """
inference_address=http://127.0.0.1:{port}
management_address=http://127.0.0.1:{port}
metrics_address=http://127.0.0.1:0
grpc_inference_port=0
grpc_management_port=0
enable_envvars_config=true
install_py_dep_per_model=true
enable_metrics_api=true
metrics_mode=prometheus
NUM_WORKERS=1
number_of_netty_threads=4
job_queue_size=10
model_store={store}
model_snapshot={{"name":"startup.cfg","modelCount":1,"models":{{"mnist":{{"1.0":{{"defaultVersion":true,\
"marName":"mnist.mar","minWorkers":1,"maxWorkers":5,"batchSize":1,"maxBatchDelay":10,"responseTimeout":120}}}}}}}}
"""
#: Of SageMaker's toolkit: its own file, and what it adds.
SAGEMAKER = """
enable_envvars_config=true
decode_input_request=false
load_models=ALL
default_response_timeout=60
default_workers_per_model=1
inference_address=http://127.0.0.1:{port}
management_address=http://127.0.0.1:{port}
metrics_address=http://127.0.0.1:0
grpc_inference_port=0
grpc_management_port=0
default_service_handler={module}:handle
"""
#: Envelopes hand over what they have taken out of a request; the package is of the archive's requirements.
HANDLER = """
import {package}


def handle(data, context):
    return data and [{{"got": str(each), "package": {package}.__name__}} for each in data]
"""
#: As SageMaker's handler service: a module on PYTHONPATH, the archive has the user's code and no manifest.
SERVICE = """
import inference


def handle(data, context):
    if data:
        return [inference.predict(bytes(row["body"]), row["body"], context.system_properties) for row in data]
"""
USER_CODE = """
import os


def predict(body, raw, properties):
    here = os.path.samefile(properties["model_dir"], os.getcwd())
    return {"body": body.decode(), "type": type(raw).__name__, "here": here}
"""
V2 = {"id": "7", "inputs": [{"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}]}
#: The envelope; request; what it hands over, and the form of the response. `body` and `json`: see test_entry_point.py.
ENVELOPES: list[tuple[str, Any, Any]] = [
    ("kserve", {"instances": [1, 2]}, {"predictions": [{"got": "1"}, {"got": "2"}]}),
    ("kservev2", V2, {"id": "7", "model_name": "mnist", "model_version": "1.0", "outputs": [
        {"name": "a", "datatype": "BYTES", "data": [{"got": "[[1 2]]"}], "shape": [1]},
    ]}),
]  # fmt: skip


def one_port() -> int:
    """A free port for two addresses that are one listener's: not of those that the system gives to others itself."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@contextmanager
def as_kserve_starts_it(tmp_path: Path, envelope: str, **files: str) -> Iterator[tuple[Server, str]]:
    """A server and its address, with one archive of HANDLER's."""
    store = tmp_path / "model-store"
    store.mkdir()
    package = "breakfast" if files else "json"
    more = {"h.py": HANDLER.format(package=package), **files}
    described = {"requirementsFile": "requirements.txt"} if files else {}
    mar(store / "mnist.mar", more, name="mnist", handler="h.py", **described)
    wrong = {"r.txt": f"--no-index\n--find-links {tmp_path}\nnone==1\n"}
    mar(store / "wrong.mar", wrong, name="wrong", requirementsFile="r.txt")
    (tmp_path / "config.properties").write_text(KSERVE.format(store=store, port=one_port()))
    flags = "--ts-config", str(tmp_path / "config.properties")
    variables = {"TS_SERVICE_ENVELOPE": envelope, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with started_command(tmp_path, *flags, **variables, TS_ENABLE_MODEL_API="true") as server:
        url = f"http://127.0.0.1:{server.port_of('TorchServe Inference')}"
        assert server.read_log(b"\nModel server started.\n")
        # As KServe's wrapper, which asks until a worker is there.
        told = requests.get(f"{url}/models/mnist?customized=false", timeout=DEADLINE_S).json()
        assert [each["status"] for each in told[0]["workers"]] == ["READY"], server.log.decode()
        yield server, url


def without(answer: Any, member: str) -> Any:
    """A value of JSON without a member, wherever that is."""
    if isinstance(answer, list):
        return [without(each, member) for each in answer]
    if isinstance(answer, dict):
        return {key: without(value, member) for key, value in answer.items() if key != member}
    return answer


@pytest.mark.parametrize(("envelope", "request_body", "expected"), ENVELOPES, ids=[each[0] for each in ENVELOPES])
def test_kserves_start_and_each_envelope(tmp_path: Path, envelope: str, request_body: Any, expected: Any) -> None:
    files = {}
    if envelope == "kserve":  # install_py_dep_per_model=true: the archive has requirements
        write_wheel(tmp_path, "breakfast", "1.0", "WHAT = 'spam'\n")
        files = {"requirements.txt": f"--no-index\n--find-links {tmp_path}\nbreakfast==1.0\n"}
    with as_kserve_starts_it(tmp_path, envelope, **files) as (server, url):
        for path in ("/predictions/mnist", "/v1/models/mnist:predict", "/v2/models/mnist/infer"):
            response = requests.post(url + path, json=request_body, timeout=DEADLINE_S)
            assert response.status_code == 200, response.text
            assert without(response.json(), "package") == expected
            assert ("breakfast" in response.text) is bool(files)
        (told,) = requests.get(f"{url}/models/mnist", timeout=DEADLINE_S).json()
        assert (told["minWorkers"], told["maxWorkers"], told["loadedAtStartup"]) == (1, 5, True)
        page = requests.get(f"http://127.0.0.1:{server.port_of('TorchServe Metrics')}/metrics", timeout=DEADLINE_S)
        assert 'ts_inference_requests_total{model_name="mnist"' in page.text
        with Stub(server.port_of("TorchServe gRPC Inference"), INFERENCE) as stub:
            told = stub.ask("Predictions", model_name="mnist", input={"body": json.dumps(request_body).encode()})
            assert without(json.loads(told.prediction), "package") == expected
        if files:
            refused = requests.post(f"{url}/models?url=wrong.mar&initial_workers=1", timeout=DEADLINE_S)
            assert (refused.status_code, refused.json()["type"]) == (400, "ModelException")
            assert refused.json()["message"].startswith("Custom pip package installation failed for model wrong. ")
            assert requests.get(f"{url}/models/wrong", timeout=DEADLINE_S).status_code == 404


def test_sagemakers_start(tmp_path: Path) -> None:
    model, store, code = tmp_path / "model", tmp_path / "ts" / "models", tmp_path / "code"
    folder(model, {"inference.py": USER_CODE})
    shutil.rmtree(model / "MAR-INF")
    store.mkdir(parents=True)
    code.mkdir()
    (code / "handler_service_of_sagemaker.py").write_text(SERVICE)
    (tmp_path / "sagemaker-ts.properties").write_text(
        SAGEMAKER.format(module="handler_service_of_sagemaker", port=one_port())
    )
    flags = ["--model-store", str(store), "--ts-config", str(tmp_path / "sagemaker-ts.properties")]
    flags += ["--log-config", "log4j2.xml", "--models", f"model={model}"]
    variables = {"PYTHONPATH": str(code), "TS_DISABLE_TOKEN_AUTHORIZATION": "true"}
    with started_command(tmp_path, *flags, **variables) as server:
        url = f"http://127.0.0.1:{server.port_of('TorchServe Inference')}"
        assert server.read_log(b"\nModel server started.\n")
        assert requests.get(f"{url}/ping", timeout=DEADLINE_S).json() == {"status": "Healthy"}
        response = requests.post(f"{url}/invocations", b'{"a": 1}', timeout=DEADLINE_S)
        assert response.json() == {"body": '{"a": 1}', "type": "bytearray", "here": True}
        # The toolkit finds the process by this argument.
        command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"org.pytorch.serve.ModelServer" in command
        assert b"--log-config is ignored" in server.log
