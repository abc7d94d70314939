"""Models of one name in two repositories: both are served, and a name finds its model while it means only one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import fetch
from tests.end_to_end.lifecycle import index, index_once, infer, ready, unloaded, write_model
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end
from tests.end_to_end.traffic import MODEL

INTEGERS = {"name": "A", "data_type": "TYPE_INT32", "dims": [4]}
AMBIGUOUS = {
    "error": "There are 2 identifiers of model 'both' in global map, "
    "model namespace must be provided to resolve ambiguity."
}


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [{{ name: "A" data_type: TYPE_INT32 dims: [ 4 ] }}]
output [{{ name: "B" data_type: TYPE_INT32 dims: [ 4 ] }}]
ensemble_scheduling {{ step [{{
  model_name: "{step}" model_version: -1
  input_map {{ key: "A" value: "A" }} output_map {{ key: "B" value: "B" }}
}}] }}
"""


def write_ensemble(repository: Path, name: str, step: str) -> None:
    write_model(repository, name, 1, config=ENSEMBLE.format(step=step))


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """`both`, `pair` and `step` in both, version 1 in the first and 2 in the second; `one` and `lent` in the second."""
    root = tmp_path_factory.mktemp("repositories")
    first, second = root / "first", root / "second"
    for name in ("both", "pair", "step"):
        write_model(first, name, 1)
        write_model(second, name, 2)
    for name in ("one", "lent"):
        write_model(second, name, 1)
    write_ensemble(first, "first_made", "step")
    write_ensemble(second, "second_made", "step")
    write_ensemble(first, "borrowed", "lent")
    # `outer` in the second is no ensemble: nothing waits for itself.
    write_ensemble(first, "outer", "inner")
    write_ensemble(second, "inner", "outer")
    write_model(second, "outer", 2)
    return first, second


@pytest.fixture(scope="module")
def server(repositories: tuple[Path, Path]) -> Iterator[Server]:
    flags = "--model-namespacing=true", "--model-control-mode=explicit", "--load-model=both", "--load-model=outer"
    with serving_to_the_end(repositories, *flags, "--grpc-port=0") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as made:
        yield made


def told(server: Server, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON."""
    reply = fetch(server.http_port, f"/v2/{path}", body)
    return reply.status, reply.json if reply.body else None


def test_what_has_one_name_is_refused_by_it_and_all_else_works(
    server: Server, client: triton.InferenceServerClient, repositories: tuple[Path, Path]
) -> None:
    assert f"{repositories[0]}::both".encode() in server.log
    models = "both", "one"
    assert index(client, *models) == [ready("both", 1), ready("both", 2), {"name": "one"}]
    assert client.is_server_ready()
    for path in ("models/both", "models/both/versions/1", "models/both/config", "models/both/ready"):
        assert told(server, path) == (400, AMBIGUOUS)
    assert told(server, "models/both/infer", {"inputs": []}) == (400, AMBIGUOUS)
    assert told(server, "models/both/stats") == (400, {"error": "requested model 'both' is not available"})
    statistics = told(server, "models/stats")[1]["model_stats"]
    assert [each["version"] for each in statistics if each["name"] == "both"] == ["1", "2"]
    assert index(client, *models) == [ready("both", 1), ready("both", 2), {"name": "one"}]
    client.load_model("one")
    assert infer(client, "one") == "1"
    client.unload_model("one")
    for name in ("one", "none"):
        assert told(server, f"models/{name}") == (400, {"error": f"Request for unknown model: '{name}' is not found"})
    index_once(client, [ready("both", 1), ready("both", 2), unloaded("one")])


def test_a_load_by_name_is_of_all_models_that_bear_it(
    server: Server, client: triton.InferenceServerClient, repositories: tuple[Path, Path]
) -> None:
    """As with --load-model; what fails is told of each, and an unload is of all, too."""
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client:
        for each in (client, grpc_client):
            each.load_model("pair")
            index_once(client, [ready("pair", 1), ready("pair", 2)])
            assert told(server, "models/pair")[0] == 400
            each.unload_model("pair", unload_dependents=True)
            index_once(client, [unloaded("pair", 1), unloaded("pair", 2)])
    for repository in repositories:
        write_model(repository, "pair", config=MODEL + 'output { name: "C" data_type: TYPE_INT32 dims: [ 4 ] }')
    with pytest.raises(InferenceServerException) as refusal:
        client.load_model("pair")
    for repository, version in zip(repositories, (1, 2), strict=True):
        sentence = f"load failed for model '{repository}::pair': version {version} is at UNAVAILABLE state: "
        assert sentence in refusal.value.message()
    # The configuration of a request is for all.
    config = {"backend": "identity", "max_batch_size": 8, "input": [INTEGERS], "output": [{**INTEGERS, "name": "B"}]}
    client.load_model("pair", config=json.dumps(config))
    index_once(client, [ready("pair", 1), ready("pair", 2)])
    with pytest.raises(InferenceServerException, match="Invalid config override"):
        client.load_model("pair", config="{")


def test_a_name_loses_its_meaning_with_a_second_model_and_gains_it_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_model(first, "both", 1)
    write_model(second, "one", 1)
    flags = ("--model-namespacing=true", "--model-control-mode=poll", "--repository-poll-secs=1")
    with serving_to_the_end((first, second), *flags) as server, triton.InferenceServerClient(server.url) as client:
        assert infer(client, "both") == "1"
        write_model(second, "both", 2)
        index_once(client, [ready("both", 1), ready("both", 2), ready("one")])
        assert told(server, "models/both") == (400, AMBIGUOUS)
        shutil.rmtree(first / "both")
        index_once(client, [unloaded("both", 1), ready("both", 2), ready("one")])
        assert infer(client, "both") == "2"


def test_an_ensemble_means_the_models_of_its_own_repository(client: triton.InferenceServerClient) -> None:
    models = "inner", "outer", "first_made", "second_made", "borrowed", "step", "lent"
    loaded = [each for each in index(client, *models) if "state" in each]
    assert loaded == [ready("inner"), ready("outer", 1), ready("outer", 2)]
    client.load_model("first_made")
    assert infer(client, "first_made") == "1"
    assert index(client, "step") == [ready("step", 1), {"name": "step"}]
    client.load_model("second_made")
    assert index(client, "step") == [ready("step", 1), ready("step", 2)]
    assert infer(client, "second_made") == "1"
    client.unload_model("first_made", unload_dependents=True)
    index_once(client, [unloaded("step", 1), ready("step", 2)])
    assert infer(client, "second_made") == "1"
    client.unload_model("second_made", unload_dependents=True)
    index_once(client, [unloaded("step", 1), unloaded("step", 2)])
    client.load_model("borrowed")
    assert infer(client, "borrowed") == "1"
