"""Forests through a real server and the real client: answers, batches, a reload, and what does not load."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from shoal.workers.backends.fil_options import FILENAMES
from tests.end_to_end.server import DEADLINE_S, Server, serving

FORESTS = Path(__file__).parents[1] / "data" / "forests"
ANSWERS = np.load(FORESTS / "answers.npz", allow_pickle=False)
NUM_ROWS = 40
#: Until all rows are there, nothing is executed.
TOGETHER = f"dynamic_batching {{ preferred_batch_size: [ {NUM_ROWS} ] max_queue_delay_microseconds: 60000000 }}"
#: model_type → features, columns of the output, parameters.
MODELS = {
    "xgboost": (10, 1, {"is_classifier": "false"}),
    "xgboost_json": (30, 1, {"is_classifier": "true", "predict_proba": "true"}),
    "xgboost_ubj": (13, 3, {"is_classifier": "true", "predict_proba": "true"}),
    "lightgbm": (10, 1, {"output_class": "false"}),
    "treelite_checkpoint": (30, 2, {"output_class": "true", "predict_proba": "true"}),
}

Array = NDArray[np.float32]


def add_model(repository: Path, name: str, model_type: str, tensors: bool = True, features: int = 0) -> None:
    """A model of the forest of this type; with or without inputs and outputs, or with a wrong number of features."""
    num_features, columns, parameters = MODELS[model_type]
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(FORESTS / FILENAMES[model_type], repository / name / "1")
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in {"model_type": model_type, **parameters}.items()
    ]
    if tensors:
        lines += [
            f'input {{ name: "input__0" data_type: TYPE_FP32 dims: {features or num_features} }}',
            f'output {{ name: "output__0" data_type: TYPE_FP32 dims: {columns} }}',
        ]
    (repository / name / "config.pbtxt").write_text(
        "\n".join(['backend: "fil"', f"max_batch_size: {NUM_ROWS}", TOGETHER, *lines])
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for model_type in MODELS:
        add_model(path, model_type, model_type)
    add_model(path, "changing", "xgboost")
    add_model(path, "described", "xgboost_ubj", tensors=False)
    add_model(path, "narrow", "xgboost_ubj", features=12)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
    with serving(repository, *flags) as running:
        yield running
        assert running.stop() == 0, running.log.decode()


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S, concurrency=4) as made:
        yield made


def tensor(rows: Array) -> triton.InferInput:
    given = triton.InferInput("input__0", rows.shape, "FP32")
    given.set_data_from_numpy(rows)
    return given


def ask(client: triton.InferenceServerClient, name: str, model_type: str) -> Array:
    answer: Array | None = client.infer(name, [tensor(ANSWERS[f"{model_type}_inputs"])]).as_numpy("output__0")
    assert answer is not None
    return answer


@pytest.mark.parametrize("model_type", MODELS)
def test_answers_are_the_frameworks_own(client: triton.InferenceServerClient, model_type: str) -> None:
    answer = ask(client, model_type, model_type)
    np.testing.assert_allclose(answer, ANSWERS[f"{model_type}_scores"], rtol=1e-5, atol=1e-6)


def test_a_configuration_without_tensors_is_completed(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("described")
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("input__0", [13])]
    assert [(each["name"], each["dims"]) for each in config["output"]] == [("output__0", [3])]
    np.testing.assert_allclose(ask(client, "described", "xgboost_ubj"), ANSWERS["xgboost_ubj_scores"], atol=1e-5)


def test_requests_are_executed_together(client: triton.InferenceServerClient) -> None:
    inputs, scores = ANSWERS["lightgbm_inputs"], ANSWERS["lightgbm_scores"]
    before = executions(client, "lightgbm")
    waiting = [client.async_infer("lightgbm", [tensor(rows)]) for rows in np.split(inputs, 4)]
    for each, expected in zip(waiting, np.split(scores, 4), strict=True):
        answer: Array | None = each.get_result(timeout=DEADLINE_S).as_numpy("output__0")
        assert answer is not None
        np.testing.assert_allclose(answer, expected, rtol=1e-5)
    assert executions(client, "lightgbm") == before + 1


def executions(client: triton.InferenceServerClient, model: str) -> int:
    (row,) = client.get_inference_statistics(model)["model_stats"]
    return int(row["execution_count"])


def test_a_request_of_another_width_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'input__0' for model 'xgboost'"):
        client.infer("xgboost", [tensor(np.zeros((NUM_ROWS, 9), np.float32))])


def test_a_forest_of_another_width_does_not_load(server: Server, client: triton.InferenceServerClient) -> None:
    assert not client.is_model_ready("narrow")
    assert server.read_log(
        b"tensor 'input__0': the model expects 2 dimensions (shape [-1,13]) but the model configuration"
    )


def test_a_reload_brings_another_forest_and_a_corrupt_one_changes_nothing(
    repository: Path, client: triton.InferenceServerClient
) -> None:
    np.testing.assert_allclose(ask(client, "changing", "xgboost"), ANSWERS["xgboost_scores"], rtol=1e-5)
    add_model(repository, "changing", "lightgbm")
    client.load_model("changing")
    np.testing.assert_allclose(ask(client, "changing", "lightgbm"), ANSWERS["lightgbm_scores"], rtol=1e-5)

    (repository / "changing" / "1" / "model.txt").write_text("tree\nbut no forest\n")
    with pytest.raises(
        InferenceServerException, match=r"model\.txt' cannot be read as lightgbm: .*Ill-formed LightGBM"
    ):
        client.load_model("changing")
    np.testing.assert_allclose(ask(client, "changing", "lightgbm"), ANSWERS["lightgbm_scores"], rtol=1e-5)
