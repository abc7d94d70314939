"""Models of one name in two repositories: both are served, and a name finds its model while it means only one."""

import json
import shutil
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


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[Path, Path]:
    """`both` in both, version 1 in the first and 2 in the second; `one` in the second."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_model(first, "both", 1)
    write_model(second, "both", 2)
    write_model(second, "one", 1)
    return first, second


def told(server: Server, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON."""
    reply = fetch(server.http_port, f"/v2/{path}", body)
    return reply.status, reply.json if reply.body else None


def test_what_has_one_name_is_refused_by_it_and_all_else_works(repositories: tuple[Path, Path]) -> None:
    with (
        serving_to_the_end(
            repositories, "--model-namespacing=true", "--model-control-mode=explicit", "--load-model=both"
        ) as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        assert f"{repositories[0]}::both".encode() in server.log
        assert index(client) == [ready("both", 1), ready("both", 2), {"name": "one"}]
        assert client.is_server_ready()
        for path in ("models/both", "models/both/versions/1", "models/both/config", "models/both/ready"):
            assert told(server, path) == (400, AMBIGUOUS)
        assert told(server, "models/both/infer", {"inputs": []}) == (400, AMBIGUOUS)
        assert told(server, "models/both/stats") == (400, {"error": "requested model 'both' is not available"})
        assert [each["version"] for each in told(server, "models/stats")[1]["model_stats"]] == ["1", "2"]
        assert index(client) == [ready("both", 1), ready("both", 2), {"name": "one"}]
        client.load_model("one")
        assert infer(client, "one") == "1"
        client.unload_model("one")
        for name in ("one", "none"):
            assert told(server, f"models/{name}") == (
                400, {"error": f"Request for unknown model: '{name}' is not found"}
            )  # fmt: skip
        index_once(client, [ready("both", 1), ready("both", 2), unloaded("one")])


def test_a_load_by_name_is_of_all_models_that_bear_it(repositories: tuple[Path, Path]) -> None:
    """As with --load-model; what fails is told of each, and an unload is of all, too."""
    with (
        serving_to_the_end(
            repositories, "--model-namespacing=true", "--model-control-mode=explicit", "--grpc-port=0"
        ) as server,
        triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client,
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client,
    ):
        for each in (client, grpc_client):
            each.load_model("both")
            index_once(client, [ready("both", 1), ready("both", 2)])
            assert told(server, "models/both") == (400, AMBIGUOUS)
            each.unload_model("both", unload_dependents=True)
            index_once(client, [unloaded("both", 1), unloaded("both", 2)])
        for repository in repositories:
            write_model(repository, "both", config=MODEL + 'output { name: "C" data_type: TYPE_INT32 dims: [ 4 ] }')
        with pytest.raises(InferenceServerException) as refusal:
            client.load_model("both")
        for repository, version in zip(repositories, (1, 2), strict=True):
            sentence = f"load failed for model '{repository}::both': version {version} is at UNAVAILABLE state: "
            assert sentence in refusal.value.message()
        # The configuration of a request is for all.
        config = {
            "backend": "identity",
            "max_batch_size": 8,
            "input": [INTEGERS],
            "output": [{**INTEGERS, "name": "B"}],
        }
        client.load_model("both", config=json.dumps(config))
        index_once(client, [ready("both", 1), ready("both", 2)])
        with pytest.raises(InferenceServerException, match="Invalid config override"):
            client.load_model("both", config="{")


def test_a_name_loses_its_meaning_with_a_second_model_and_gains_it_again(repositories: tuple[Path, Path]) -> None:
    first, second = repositories
    shutil.rmtree(second / "both")
    flags = ("--model-namespacing=true", "--model-control-mode=poll", "--repository-poll-secs=1")
    with serving_to_the_end(repositories, *flags) as server, triton.InferenceServerClient(server.url) as client:
        assert infer(client, "both") == "1"
        write_model(second, "both", 2)
        index_once(client, [ready("both", 1), ready("both", 2), ready("one")])
        assert told(server, "models/both") == (400, AMBIGUOUS)
        shutil.rmtree(first / "both")
        index_once(client, [unloaded("both", 1), ready("both", 2), ready("one")])
        assert infer(client, "both") == "2"


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


def test_an_ensemble_means_the_models_of_its_own_repository(repositories: tuple[Path, Path]) -> None:
    first, second = repositories
    write_ensemble(first, "first_made", "both")
    write_ensemble(second, "second_made", "both")
    write_ensemble(first, "borrowed", "one")
    # `outer` in the second is no ensemble: nothing waits for itself.
    write_ensemble(first, "outer", "inner")
    write_ensemble(second, "inner", "outer")
    write_model(second, "outer", 2)
    flags = "--model-namespacing=true", "--model-control-mode=explicit", "--load-model=outer"
    with serving_to_the_end(repositories, *flags) as server, triton.InferenceServerClient(server.url) as client:
        assert [each for each in index(client) if "state" in each] == [
            ready("inner"), ready("outer", 1), ready("outer", 2)
        ]  # fmt: skip
        client.load_model("first_made")
        assert infer(client, "first_made") == "1"
        assert index(client, "both") == [ready("both", 1), {"name": "both"}]
        client.load_model("second_made")
        assert index(client, "both") == [ready("both", 1), ready("both", 2)]
        assert infer(client, "second_made") == "1"
        client.unload_model("first_made", unload_dependents=True)
        index_once(client, [unloaded("both", 1), ready("both", 2)])
        assert infer(client, "second_made") == "1"
        client.unload_model("second_made", unload_dependents=True)
        index_once(client, [unloaded("both", 1), unloaded("both", 2)])
        client.load_model("borrowed")
        assert infer(client, "borrowed") == "1"
