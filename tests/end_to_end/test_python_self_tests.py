"""Models without inputs, which test themselves where they run, as Triton's own QA has them; through a whole server."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.end_to_end.self_test_models import (
    ARGUMENTS,
    DOUBLE,
    FORKS,
    LEAVES,
    METRICS,
    OUTPUT,
    PLAIN,
    SELF_TEST,
    X_TO_Y,
    add_model,
)
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "no_inputs", PLAIN + SELF_TEST, OUTPUT)
    add_model(repository, "no_tensors", PLAIN + SELF_TEST, "")
    add_model(repository, "no_configuration", PLAIN + SELF_TEST, None)
    add_model(repository, "batched", PLAIN + SELF_TEST, f"max_batch_size: 4 dynamic_batching {{}} {OUTPUT}")
    add_model(repository, "double", DOUBLE, X_TO_Y)
    add_model(repository, "forks", FORKS + SELF_TEST, OUTPUT)
    add_model(repository, "leaves", LEAVES, OUTPUT)
    add_model(repository, "metrics", METRICS + SELF_TEST, OUTPUT)
    add_model(repository, "arguments", ARGUMENTS + SELF_TEST, OUTPUT)
    with serving(repository, "--grpc-port=0") as started:
        yield started
        assert started.stop() == 0, started.log.decode()
        assert b"Exception ignored" not in started.log


def told(server: Server, model: str, test: str = "", **parameters: str | int) -> str:
    """What a model says of one of its tests, asked over HTTP."""
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        answer = client.infer(model, [], parameters={"test": test, **parameters}).as_numpy("TOLD")
    assert answer is not None
    text: str = answer.ravel()[0].decode()
    return text


@pytest.mark.parametrize(
    ("model", "outputs"), [("no_inputs", ["TOLD"]), ("batched", ["TOLD"]), ("no_tensors", []), ("no_configuration", [])]
)
def test_a_model_without_inputs_answers(server: Server, model: str, outputs: list[str]) -> None:
    """With the outputs that its configuration lists, as in Triton."""
    parameters = {"test": "test_nothing"}
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        answer = client.infer(model, [], parameters=parameters)
        assert [each["name"] for each in answer.get_response().get("outputs", [])] == outputs
        metadata = client.get_model_metadata(model)
        assert [metadata["inputs"], [each["name"] for each in metadata["outputs"]]] == [[], outputs]
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client:
        answers = grpc_client.infer(model, [], parameters=parameters, client_timeout=DEADLINE_S)
        assert answers is not None
        assert [each.name for each in answers.get_response().outputs] == outputs
    generated = requests.post(f"http://{server.url}/v2/models/{model}/generate", json=parameters, timeout=DEADLINE_S)
    assert generated.status_code == 200, generated.text
    assert ("TOLD" in generated.json()) == bool(outputs)


def test_an_input_that_the_model_has_not_is_refused(server: Server) -> None:
    given = tritonclient.http.InferInput("X", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
    with (
        tritonclient.http.InferenceServerClient(server.url) as client,
        pytest.raises(InferenceServerException, match="expected 0 inputs but got 1 inputs for model 'no_inputs'"),
    ):
        client.infer("no_inputs", [given])


@pytest.mark.parametrize(
    "test",
    [
        "test_requests", "test_responses", "test_tensors", "test_logs", "test_errors", "test_metrics",
        "test_model_control", "test_names_may_be_bytes",
    ],
)  # fmt: skip
def test_arguments(server: Server, test: str) -> None:
    assert told(server, "arguments", test) == ""


def test_the_children_of_a_model_call_others(server: Server) -> None:
    assert told(server, "forks", "test_forks") == ""
    assert told(server, "forks", "test_forks_while_it_holds_a_response") == ""
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_a_forked_process_that_leaves_the_model_is_no_second_worker(server: Server) -> None:
    def statuses(how: str) -> list[int]:
        found: list[int] = json.loads(told(server, "leaves", how=how))
        return found

    first = statuses("return")
    assert [first[:2], first[-1]] == [[0, 4], 0]
    assert requests.get(f"http://{server.url}/v2/models/leaves/ready", timeout=DEADLINE_S).status_code == 200
    assert statuses("SystemExit()") == [5, 0]
    for how, status in [("ValueError('of a child')", 1), ("SystemExit(3)", 3), ("SystemExit('so')", 1), ("send", 1)]:
        assert statuses(how) == [status], how
    for line in (b"ValueError: of a child", b"a process that the model has forked cannot answer its requests"):
        assert server.read_log(line), server.log.decode()
    server.ledger_once(lambda ledger: not imbalances(ledger))


@pytest.mark.parametrize(
    "test",
    ["test_what_is_set_is_seen_at_once", "test_the_first_description_is_kept", "test_metrics_go_with_their_family"],
)
def test_custom_metrics(server: Server, test: str) -> None:
    for _ in range(2):
        assert told(server, "metrics", test, port=server.metrics_port) == ""
