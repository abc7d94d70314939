"""Models that load, models that do not, and what the server does about them."""

from pathlib import Path
from typing import Any

import pytest
import requests
import tritonclient.grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.lifecycle import ready
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, launch, serving_to_the_end

GOOD = SAMPLES / "simple"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with `simple`, to which tests add a model that fails."""
    (tmp_path / "simple").symlink_to(GOOD)
    return tmp_path


def run_to_end(repository: Path, *flags: str) -> Server:
    server = launch(repository, *flags)
    server.wait()
    return server


def test_model_that_fails_ends_the_server_with_one(repository: Path) -> None:
    (add_model(repository, "broken", 'backend: "onnxruntime" max_batch_size: 1') / "model.onnx").write_bytes(
        b"no model"
    )
    server = run_to_end(repository)
    assert server.process.returncode == 1
    assert b"error: creating server: Internal - failed to load all models" in server.log
    assert b"| simple | 1       | READY" in server.log


def test_server_is_ready_despite_a_failed_model_where_readiness_is_not_strict(repository: Path) -> None:
    add_model(repository, "broken", "frobnicate: 1")
    (repository / "auto" / "1").mkdir(parents=True)
    (repository / "auto" / "1" / "model.onnx").symlink_to(SAMPLES / "mlp" / "1" / "model.onnx")
    with (
        serving_to_the_end(repository, "--exit-on-error=false", "--strict-readiness=false") as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        assert client.is_server_ready()
        check_what_an_onnx_file_tells(client.get_model_config("auto"))


def test_a_model_that_cannot_be_polled_leaves_the_server_ready(repository: Path) -> None:
    """Triton's readiness knows only models whose configuration it has taken."""
    add_model(repository, "broken", "frobnicate: 1")
    (repository / "other").symlink_to(GOOD)
    with (
        serving_to_the_end(repository, "--exit-on-error=false", "--model-control-mode=explicit", "--load-model=broken",
                "--load-model=simple", "--load-model=nobody") as server,
        triton.InferenceServerClient(server.url) as client,
    ):  # fmt: skip
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        rows = {row["name"]: row for row in client.get_model_repository_index()}
        assert (rows["simple"], rows["other"]) == (ready("simple"), {"name": "other"})
        assert rows["nobody"]["state"] == "UNAVAILABLE"
        status, told = get(server, "/v2/health/reasons")
        assert (status, told["ready"]) == (200, True)
        assert [row["name"] for row in told["reasons"]] == ["broken", "nobody"]
        # One whose configuration is fine and that has no version is not ready, and nor is the server.
        (repository / "empty").mkdir()
        (repository / "empty" / "config.pbtxt").write_text(config_text("identity", "A INT32 1", "B INT32 1"))
        with pytest.raises(InferenceServerException, match="at least one version must be available"):
            client.load_model("empty")
        assert not client.is_server_ready()
        client.unload_model("empty")
        assert client.is_server_ready()


def test_without_its_repository_the_server_stays_and_is_not_live(tmp_path: Path) -> None:
    with (
        serving_to_the_end(tmp_path / "missing", "--exit-on-error=false", "--grpc-port=0") as server,
        triton.InferenceServerClient(server.url) as client,
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client,
    ):
        assert b"error: creating server: Invalid argument - failed to read the directory" in server.log
        for each in (client, grpc_client):
            assert not each.is_server_live()
            assert not each.is_server_ready()
            with pytest.raises(InferenceServerException, match="Server not ready"):
                each.get_model_repository_index()
        assert get(server, "/v2/health/live")[0] == 400


def get(server: Server, path: str) -> tuple[int, Any]:
    response = requests.get(f"http://{server.url}{path}", timeout=DEADLINE_S)
    return response.status_code, response.json() if response.content else None


def check_what_an_onnx_file_tells(config: dict[str, Any]) -> None:
    """A model without a configuration has Triton's."""
    assert (config["backend"], config["platform"], config["max_batch_size"]) == ("onnxruntime", "onnxruntime_onnx", 4)
    assert config["input"][0]["dims"] == [512]
    assert "dynamic_batching" in config
    assert [group["count"] for group in config["instance_group"]] == [2]
