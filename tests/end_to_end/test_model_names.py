"""Models whose names are those of any directory: served, loaded and unloaded, in metrics, titles and logs."""

from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.lifecycle import ENSEMBLE, NAMES, index_once, infer, ready, unloaded, write_model
from tests.end_to_end.repositories import python_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, samples, serving_to_the_end, title

TELLS_ITS_NAME = python_model("""
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "NAME", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "A", "data_type": "TYPE_INT32", "dims": [4]})
        return config

    def initialize(self, args):
        self.name = args["model_name"]
        print("printed by", self.name)

    def execute(self, requests):
        name = pb_utils.Tensor("NAME", np.array([self.name.encode()], np.object_))
        return [pb_utils.InferenceResponse([name]) for _ in requests]
""")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name in NAMES:
        write_model(repository, name, 1)
    write_model(repository, "an ensemble, too", 1, config=ENSEMBLE.replace("STEP", NAMES[0]))
    python = write_model(repository, "python, 100% é", 1, config='backend: "python"\n')
    (python / "1" / "model.py").write_text(TELLS_ITS_NAME)
    write_model(repository, "line\nfeed", 1)
    (repository / "caf\udce9" / "1").mkdir(parents=True)  # in Latin-1: no UTF-8
    flags = [f"--load-model={name}" for name in NAMES if name != "*"]  # which would mean all
    with serving_to_the_end(repository, "--model-control-mode=explicit", *flags, "--grpc-port=0") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[tritonclient.http.InferenceServerClient]:
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as made:
        made.load_model("*")
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_served_by_its_directory_s_name(
    server: Server, client: tritonclient.http.InferenceServerClient, name: str
) -> None:
    assert client.is_model_ready(name)
    assert client.get_model_config(name)["name"] == name
    assert client.get_model_metadata(name)["name"] == name
    assert infer(client, name) == "1"
    assert client.get_inference_statistics(name)["model_stats"][0]["name"] == name
    # With every byte escaped, as a URL may have it.
    escaped = "".join(f"%{byte:02X}" for byte in name.encode())
    assert requests.get(f"http://{server.url}/v2/models/{escaped}", timeout=DEADLINE_S).json()["name"] == name
    value = name.replace("\\", "\\\\").replace('"', '\\"')
    assert samples(server.metrics_port)[f'nv_inference_request_success{{model="{value}",version="1"}}'] >= 1
    titles = [title(pid) for pid in descendants(server.process.pid)]
    assert any(each.startswith(f"shoal worker {name}_0_0 ") for each in titles), titles


@pytest.mark.parametrize("name", NAMES)
def test_grpc_serves_it_too(server: Server, name: str) -> None:
    tensor = tritonclient.grpc.InferInput("A", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.arange(4, dtype=np.int32).reshape(1, 4))
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.load_model(name)
        assert client.is_model_ready(name)
        result = client.infer(name, [tensor])
        assert result is not None
        response = result.get_response()
        assert (response.model_name, response.model_version) == (name, "1")


def test_it_is_loaded_and_unloaded(client: tritonclient.http.InferenceServerClient) -> None:
    for name in NAMES[1:4]:
        client.unload_model(name)
        index_once(client, [unloaded(name)])
        client.load_model(name)
        index_once(client, [ready(name)])
    client.load_model("an ensemble, too")
    assert infer(client, "an ensemble, too") == "1"


def test_a_python_model_is_told_its_name_and_prints_under_it(
    server: Server, client: tritonclient.http.InferenceServerClient
) -> None:
    name = "python, 100% é"
    client.load_model(name)
    tensor = tritonclient.http.InferInput("A", [4], "INT32")
    tensor.set_data_from_numpy(np.zeros(4, np.int32))
    answer = client.infer(name, [tensor]).as_numpy("NAME")
    assert answer is not None
    assert answer.tolist() == [name.encode()]
    assert server.read_log(f"printed by {name}".encode())


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "line\nfeed", "é" * 128])
def test_what_can_be_no_directory_is_refused(server: Server, name: str) -> None:
    with (
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match=r"(?i)model name"),
    ):
        client.load_model(name)
    if name:
        answer = requests.post(
            f"http://{server.url}/v2/repository/models/{quote(name, safe='').replace('.', '%2E')}/load",
            timeout=DEADLINE_S,
        )
        assert answer.status_code == 400
        assert "invalid model name" in answer.json()["error"]


def test_a_directory_with_an_impossible_name_is_in_the_index_with_the_reason(
    client: tritonclient.http.InferenceServerClient,
) -> None:
    reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert "directory name 'line\\nfeed' is no model name: " in reasons["line\nfeed"]
    assert "directory name 'caf\\udce9' is no model name: " in reasons["caf\\udce9"]
