"""SageMaker's endpoint on a real server: one model, and many that come and go."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton

from tests.end_to_end.sagemaker import CONFIG, SageMaker, write_ensemble, write_model
from tests.end_to_end.server import Server, descendants, launch, serving_to_the_end, title, wait_until

FLAGS = ("--allow-sagemaker=true", "--sagemaker-port=0", "--model-control-mode=explicit")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository / "one")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "one"}
    with serving_to_the_end(repository, *FLAGS, "--load-model=one", environment=environment) as server:
        yield server


@pytest.fixture
def sagemaker(server: Server) -> SageMaker:
    return SageMaker(server)


def test_one_model(sagemaker: SageMaker) -> None:
    assert sagemaker.ask("GET", "/ping") == (200, None, b"")
    assert sagemaker.infer("/invocations") == [1, 2]
    assert sagemaker.ask("POST", "/invocations", "{}")[0] == 400
    assert sagemaker.ask("GET", "/v2/health/live")[0] == 400


@pytest.mark.parametrize("inside", ["", "whatever"])
def test_a_model_comes_and_goes(sagemaker: SageMaker, tmp_path: Path, inside: str) -> None:
    url = tmp_path / "H1" / "model"
    write_model(url / inside, f'name: "whatever"\n{CONFIG}')
    for _ in range(2):
        assert sagemaker.ask("POST", "/models/H1/invoke", "{}")[0] == 404
        assert sagemaker.load("H1", url) == 200
        assert sagemaker.load("H1", url) == 409
        row = {"modelName": "H1", "modelUrl": str(url)}
        assert json.loads(sagemaker.ask("GET", "/models")[2]) == {"models": [row]}
        assert json.loads(sagemaker.ask("GET", "/models/H1")[2]) == row
        assert sagemaker.infer("/models/H1/invoke") == [1, 2]
        assert sagemaker.ask("DELETE", "/models/H1")[0] == 200
        assert sagemaker.ask("DELETE", "/models/H1")[0] == 404
        assert sagemaker.ask("GET", "/models/H1")[0] == 404
    assert (url / inside / "config.pbtxt").exists()  # it was not ours
    assert sagemaker.ask("GET", "/ping")[0] == 200


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(sagemaker: SageMaker, tmp_path: Path) -> None:
    assert sagemaker.load("H2", tmp_path / "none") == 400
    write_model(tmp_path / "model", CONFIG.replace("INT32", "FP32", 1))
    assert sagemaker.load("H2", tmp_path) == 400
    assert json.loads(sagemaker.ask("GET", "/models")[2]) == {"models": []}
    assert sagemaker.ask("GET", "/ping")[0] == 200
    (tmp_path / "model" / "config.pbtxt").write_text(CONFIG)
    assert sagemaker.load("H2", tmp_path) == 200
    assert sagemaker.infer("/models/H2/invoke") == [1, 2]
    assert sagemaker.ask("DELETE", "/models/H2")[0] == 200
    assert sagemaker.load("one", tmp_path) == 409  # the server's own


def stopped_reader(server: Server, sagemaker: SageMaker, directory: Path) -> int:
    """The process that reads models, stopped. Where it ended for want of orders, the next is looked for. One that the
    server ends while it is stopped reads nothing, and the next order starts another."""
    while True:
        assert sagemaker.load("H5", directory) == 200
        assert sagemaker.ask("DELETE", "/models/H5")[0] == 200
        for pid in descendants(server.process.pid):
            if title(pid) == "shoal repository poller":
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    return pid


def test_a_model_that_is_unloaded_while_it_is_looked_for_does_not_stay(
    server: Server, sagemaker: SageMaker, tmp_path: Path
) -> None:
    write_model(tmp_path)
    reader = stopped_reader(server, sagemaker, tmp_path)
    try:
        with ThreadPoolExecutor() as threads:
            loaded = threads.submit(sagemaker.load, "H6", tmp_path)
            wait_until(lambda: sagemaker.ask("GET", "/models/H6")[0] == 200)
            removed = threads.submit(sagemaker.ask, "DELETE", "/models/H6")
            for _ in range(50):  # behind it, so that the supervisor has most likely been asked to remove the model
                assert sagemaker.ask("GET", "/models")[0] == 200
            with suppress(ProcessLookupError):
                os.kill(reader, signal.SIGCONT)
            assert loaded.result() == 200
            assert removed.result()[0] == 200
    finally:
        with suppress(ProcessLookupError):
            os.kill(reader, signal.SIGCONT)
    assert sagemaker.ask("POST", "/models/H6/invoke", "{}")[0] == 404
    assert sagemaker.load("H6", tmp_path) == 200
    assert sagemaker.ask("DELETE", "/models/H6")[0] == 200


def test_ensembles_of_one_s_own_come_and_go_with_their_models(
    server: Server, sagemaker: SageMaker, tmp_path: Path
) -> None:
    def there() -> list[str]:
        with triton.InferenceServerClient(server.url) as client:
            return sorted(row["name"] for row in client.get_model_repository_index() if row.get("state") == "READY")

    def asked(name: str, data: list[int]) -> tuple[int, Any]:
        tensor = {"name": "A", "datatype": "INT32", "shape": [len(data)], "data": data}
        status, _, body = sagemaker.ask("POST", f"/models/{name}/invoke", json.dumps({"inputs": [tensor]}))
        return status, json.loads(body)

    before = there()
    for length in (2, 3):  # their models have the same names, and are others
        write_ensemble(tmp_path / f"H{length}" / "model", length)
        assert sagemaker.load(f"H{length}", tmp_path / f"H{length}" / "model") == 200, server.log.decode()
    assert there() == sorted([*before, "H2", "H3", *["first", "second"] * 2])
    assert [row["modelName"] for row in json.loads(sagemaker.ask("GET", "/models")[2])["models"]] == ["H2", "H3"]
    for length in (2, 3):
        data = list(range(length))
        status, answer = asked(f"H{length}", data)
        assert (status, answer["outputs"][0]["data"], answer["model_name"]) == (200, data, f"H{length}")
    assert sagemaker.ask("DELETE", "/models/H2")[0] == 200
    assert there() == sorted([*before, "H3", "first", "second"])
    assert asked("H3", [7, 8, 9])[1]["outputs"][0]["data"] == [7, 8, 9]
    assert asked("H3", [7, 8])[0] == 400
    assert sagemaker.ask("DELETE", "/models/H3")[0] == 200
    assert there() == before


def test_a_model_goes_by_its_name_though_an_ensemble_s_model_bears_it_too(sagemaker: SageMaker, tmp_path: Path) -> None:
    write_model(tmp_path / "single")
    write_ensemble(tmp_path / "several", 2)
    assert sagemaker.load("first", tmp_path / "single") == 200
    assert sagemaker.load("H7", tmp_path / "several") == 200
    assert sagemaker.ask("DELETE", "/models/first")[0] == 200
    assert sagemaker.ask("GET", "/models/first")[0] == 404
    assert sagemaker.infer("/models/H7/invoke") == [1, 2]
    assert sagemaker.ask("DELETE", "/models/H7")[0] == 200


def test_an_archive_of_several_models_must_have_one_that_is_made_of_the_others(
    sagemaker: SageMaker, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        write_model(tmp_path / name)
    body = json.dumps({"model_name": "H4", "url": str(tmp_path)})
    status, _, answer = sagemaker.ask("POST", "/models", body)
    assert (status, b"expected one model" in answer) == (400, True), answer


def test_an_ensemble_that_lacks_a_model_leaves_none_behind(
    server: Server, sagemaker: SageMaker, tmp_path: Path
) -> None:
    write_ensemble(tmp_path, 2)
    shutil.rmtree(tmp_path / "second")
    body = json.dumps({"model_name": "H5", "url": str(tmp_path)})
    status, _, answer = sagemaker.ask("POST", "/models", body)
    assert (status, b"second" in answer) == (400, True), answer
    with triton.InferenceServerClient(server.url) as client:
        assert not any(
            row["name"] == "first" and row["state"] == "READY" for row in client.get_model_repository_index()
        )
    write_ensemble(tmp_path / "mended", 2)
    assert sagemaker.load("H5", tmp_path / "mended") == 200
    assert sagemaker.ask("DELETE", "/models/H5")[0] == 200


def test_sagemaker_alone(tmp_path: Path) -> None:
    # Ports of services that are off need not be any.
    off = ("--http-port=-47", "--allow-http=false", "--grpc-port=70000", "--allow-grpc=false", "--allow-metrics=false")
    with launch(tmp_path, *FLAGS, *off, environment={"SAGEMAKER_MULTI_MODEL": "true"}) as server:
        sagemaker = SageMaker(server)
        assert sagemaker.ask("GET", "/ping")[0] == 200
        assert sagemaker.ask("GET", "/models") == (200, "application/json", b'{"models":[]}')
        assert server.stop() == 0, server.log.decode()
