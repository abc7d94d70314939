"""What an ensemble answers where Triton's clients rely on it: outputs left out, last flags, reshapes, caches."""

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton

from tests.end_to_end.asking import outputs, tensors
from tests.end_to_end.ensemble_models import stream
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, only, samples, serving
from tests.end_to_end.triton_ensembles import ENSEMBLES, write_all


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("ensembles")
    write_all(repository)
    flags = "--grpc-port=0", "--shm-client-slab-mib=8", "--shm-worker-slab-mib=8"
    with serving(repository, *flags, *only(*ENSEMBLES)) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))


@pytest.fixture
def client(server: Server) -> Iterator[Any]:  # its type hints say None where it never is
    with triton.InferenceServerClient(server.url) as client:
        yield client


@pytest.fixture
def over_grpc(server: Server) -> Iterator[Any]:
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


def infer(client: Any, model: str, *numbers: float) -> dict[str, list[Any]]:
    """Every output of the answer, by name."""
    found = outputs(client.infer(model, tensors({"X": np.array([numbers], np.float32)})))
    return {name: array.tolist() for name, array in found.items()}


# --- an output that a step leaves out ---


def test_the_other_outputs_are_answered_and_the_log_warns(server: Server, client: Any) -> None:
    assert infer(client, "partly", 1, 2) == {"Y": [[2, 3]]}
    assert server.read_log(b"Composing models did not output tensor Z")


def test_a_step_runs_without_an_optional_input_that_was_left_out(client: Any) -> None:
    assert infer(client, "going_on", 1, 2) == {"Y": [[1002, 1003]]}


def test_a_step_that_needs_what_was_left_out_says_so(client: Any) -> None:
    sentence = r"in ensemble 'lacking', .*expected 2 inputs but got 1 inputs for model 'add'.*missing .*\['B'\]"
    with pytest.raises(triton.InferenceServerException, match=sentence):
        infer(client, "lacking", 1)


# --- streams ---


@pytest.mark.parametrize("empty_final", [False, True])
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("count", [{"Y": 3, "Z": 3}, {"Y": 4}, {"Y": 5, "Z": 3}]),
        ("counting", [{"Y": 3, "Z": 3}, {"Y": 4}, {"Y": 5, "Z": 3}]),
        ("counting_on", [{"Y": 6}, {"Y": 1004}, {"Y": 8}]),
        ("nested", [{"Y": 12}, {"Y": 2008}, {"Y": 16}]),
    ],
)
def test_the_last_response_with_data_ends_a_stream(
    server: Server, model: str, expected: list[dict[str, float]], empty_final: bool
) -> None:
    """A client that has not asked for an empty last response waits for a flag on one that is not."""
    found = stream(server, model, 3, empty_final=empty_final)
    assert sorted([each for each, _ in found], key=str) == sorted(expected, key=str)
    assert [is_last for _, is_last in found] == [False, False, True]


def test_a_stream_without_responses_ends_for_who_asked_to_hear_of_it(server: Server) -> None:
    for model in ("count", "counting", "counting_on", "nested"):
        assert stream(server, model, 0, empty_final=True) == [({}, True)]


# --- sequences ---


@pytest.mark.parametrize(
    ("model", "asked", "told"),
    [
        ("whole", {}, (0, False, False)),
        ("whole", {"sequence_id": 7, "sequence_start": True}, (7, True, False)),
        ("whole_again", {"sequence_id": 8, "sequence_end": True}, (8, False, True)),
        ("whole", {"sequence_id": "s", "sequence_start": True, "sequence_end": True}, ("s", True, True)),
        ("ended", {"sequence_id": 9, "sequence_start": True}, (9, False, True)),
    ],
)
def test_an_answer_says_which_part_of_a_sequence_it_is(
    client: Any, over_grpc: Any, model: str, asked: dict[str, Any], told: tuple[int | str, bool, bool]
) -> None:
    array = np.ones((1, 1), np.float32)
    names = "sequence_id", "sequence_start", "sequence_end"
    given = triton.InferInput("X", [1, 1], "FP32").set_data_from_numpy(array)
    parameters = client.infer(model, [given], **asked).get_response()["parameters"]
    assert tuple(parameters[name] for name in names) == told
    assert parameters.get("mood") == ("gay" if model == "ended" else None)
    given = grpc.InferInput("X", [1, 1], "FP32").set_data_from_numpy(array)
    response = over_grpc.infer(model, [given], **asked).get_response()
    found = [response.parameters[name] for name in names]
    assert tuple(getattr(each, each.WhichOneof("parameter_choice")) for each in found) == told


# --- failures ---


def failures(server: Server, model: str) -> dict[str, float]:
    """How many requests have failed, by reason, where any have."""
    figures = samples(server.metrics_port)
    name = f'nv_inference_request_failure{{model="{model}",reason="%s",version="1"}}'
    counts = {reason: figures[name % reason] for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")}
    return {reason: count for reason, count in counts.items() if count}


def test_what_a_step_refuses_is_another_failure_of_the_whole(server: Server, over_grpc: Any) -> None:
    """One request is executed, one waits, one is refused."""
    told: queue.Queue[Any] = queue.Queue()
    array = np.ones((1, 1), np.float32)
    given = grpc.InferInput("X", [1, 1], "FP32").set_data_from_numpy(array)
    asked = [over_grpc.async_infer("crowded", [given], lambda result, error: told.put(error)) for _ in range(12)]
    error = told.get(timeout=DEADLINE_S)
    assert "in ensemble 'crowded', " in str(error)
    assert "Exceeds maximum queue size" in str(error)
    found = failures(server, "crowded")
    assert set(found) == {"OTHER"}
    assert set(failures(server, "held")) == {"REJECTED"}
    for each in asked:
        each.cancel()


# --- configurations ---


@pytest.mark.parametrize(("model", "is_decoupled"), [("whole", False), ("counting", True), ("nested", True)])
def test_a_configuration_says_whether_the_ensemble_is_decoupled(
    client: Any, over_grpc: Any, model: str, is_decoupled: bool
) -> None:
    """Whatever was written: it follows from the models, and what was asked for can be loaded."""
    for _ in range(2):
        config = client.get_model_config(model)
        assert config["model_transaction_policy"] == {"decoupled": is_decoupled}
        found = over_grpc.get_model_config(model).config
        assert found.HasField("model_transaction_policy")
        assert found.model_transaction_policy.decoupled is is_decoupled
        client.load_model(model, config=json.dumps(config))


def test_a_model_that_is_not_decoupled_says_so_where_its_file_does(client: Any) -> None:
    assert client.get_model_config("partial")["model_transaction_policy"] == {"decoupled": False}
    assert "model_transaction_policy" not in client.get_model_config("double")


# --- reshapes ---


@pytest.mark.parametrize(
    ("model", "shape", "answer"),
    [
        ("rows", [2, 4], [0, 2, 1, 3, 4, 6, 5, 7]),
        ("rows_again", [2, 4, 1], [0, 2, 1, 3, 4, 6, 5, 7]),
        ("columns", [3, 1, 1], [0, 0.5, 1]),
    ],
)
def test_an_ensemble_may_reshape(
    client: Any, over_grpc: Any, model: str, shape: list[int], answer: list[float]
) -> None:
    """Its models get what they are configured for, its clients what it is."""
    assert client.get_model_metadata(model)["inputs"][0]["shape"] == [-1, *shape[1:]]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    given = triton.InferInput("X", shape, "FP32").set_data_from_numpy(array)
    found = client.infer(model, [given]).as_numpy("Y")
    assert (found.shape, found.ravel().tolist()) == (tuple(shape), answer)
    given = grpc.InferInput("X", shape, "FP32").set_data_from_numpy(array)
    found = over_grpc.infer(model, [given]).as_numpy("Y")
    assert (found.shape, found.ravel().tolist()) == (tuple(shape), answer)
