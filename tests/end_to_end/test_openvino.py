"""OpenVINO models behind a real server: IR and ONNX, batches, reload, and models that do not load."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, serving
from tests.workers.openvino_models import op, ov, saved

MLP, ENCODER = SAMPLES / "mlp" / "1" / "model.onnx", SAMPLES / "encoder" / "1" / "model.onnx"
DIGITS = Path(__file__).parents[1] / "data" / "saved_model"
#: Waits until its four rows are there, so that four requests are one execution.
PATIENT = 'backend: "openvino" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }'


def add(repository: Path, name: str, config: str) -> Path:
    """A model's version directory; without a configuration where that is empty."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return directory


def save_ir(directory: Path, *, scale: float = 1.0, layout: bool = False) -> None:
    """The sample MLP as IR, its scores multiplied by `scale`."""
    model = ov.Core().read_model(MLP)
    scores = op.multiply(model.get_results()[0].input_value(0), np.float32(scale))
    saved(directory, scores, *model.get_parameters(), layout="NC" if layout else "", name="scores")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_ir(add(root, "mlp", PATIENT))
    save_ir(add(root, "found_by_its_file", ""), layout=True)
    shutil.copy(
        ENCODER, add(root, "encoder", 'backend: "openvino" max_batch_size: 8 default_model_filename: "model.onnx"')
    )
    saved_model = 'backend: "openvino" max_batch_size: 200 default_model_filename: "model.saved_model"'
    shutil.copytree(DIGITS, add(root, "digits", saved_model) / "model.saved_model")
    (add(root, "corrupt", 'backend: "openvino"') / "model.xml").write_text("<net")
    wrong = 'backend: "openvino" max_batch_size: 4 output { name: "scores" data_type: TYPE_FP32 dims: 10 }'
    save_ir(add(root, "wrong", wrong + 'input { name: "features" data_type: TYPE_FP32 dims: 511 }'))
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    loaded = [f"--load-model={name}" for name in ("mlp", "found_by_its_file", "encoder", "digits")]
    with serving(repository, "--model-control-mode=explicit", *loaded) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url, concurrency=4, network_timeout=DEADLINE_S) as connected:
        yield connected


def tensors(**arrays: NDArray[Any]) -> list[triton.InferInput]:
    inputs = [
        triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)) for name, array in arrays.items()
    ]
    for tensor, array in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return inputs


def ask(client: Any, model: str, output: str, **arrays: NDArray[Any]) -> NDArray[Any]:
    answer: NDArray[Any] = client.infer(model, tensors(**arrays)).as_numpy(output)
    return answer


def features(rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, 512)).astype(np.float32)


def executions(client: Any, model: str) -> dict[int, int]:
    """Rows → how many executions had so many."""
    stats = client.get_inference_statistics(model)["model_stats"][0]["batch_stats"]
    return {each["batch_size"]: each["compute_infer"]["count"] for each in stats}


def test_several_requests_are_one_execution_with_openvinos_answers(client: Any) -> None:
    alone, before = ov.Core().compile_model(MLP, "CPU"), executions(client, "mlp")
    rows = [features(1, seed) for seed in range(4)]
    asked = [client.async_infer("mlp", tensors(features=row)) for row in rows]
    for row, request in zip(rows, asked, strict=True):
        answer = request.get_result().as_numpy("scores")
        np.testing.assert_allclose(answer, alone(row)[0], rtol=1e-5, atol=1e-5)
    assert executions(client, "mlp") == before | {4: before.get(4, 0) + 1}


def test_a_model_without_configuration_is_found_by_its_file(client: Any) -> None:
    config = client.get_model_config("found_by_its_file")
    assert (config["backend"], config["max_batch_size"], "dynamic_batching" in config) == ("openvino", 4, True)
    assert [(tensor["name"], tensor["dims"]) for tensor in config["input"]] == [("features", [512])]
    expected = ov.Core().compile_model(MLP, "CPU")(features(3))[0]
    np.testing.assert_allclose(
        ask(client, "found_by_its_file", "scores", features=features(3)), expected, rtol=1e-5, atol=1e-5
    )


def test_a_trained_onnx_model_with_two_inputs_and_dynamic_shapes(client: Any) -> None:
    ids = np.array([[2, 5, 7, 11, 3], [4, 9, 1, 0, 0]], np.int64)
    mask = (ids > 0).astype(np.int64)
    expected = ov.Core().compile_model(ENCODER, "CPU")({"input_ids": ids, "attention_mask": mask})["logits"]
    answer = ask(client, "encoder", "logits", input_ids=ids, attention_mask=mask)
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def test_a_trained_model_of_tensorflow(client: Any) -> None:
    digits = np.load(DIGITS.parent / "held_out_digits.npz")
    images, labels = digits["images"][300:].astype(np.float32), digits["labels"][300:]
    answer = ask(client, "digits", "scores", pixels=images)
    np.testing.assert_allclose(answer, ov.Core().compile_model(DIGITS, "CPU")(images)[0], rtol=1e-5, atol=1e-6)
    assert np.mean(answer.argmax(axis=1) == labels) > 0.85


def test_a_reload_serves_the_new_file(client: Any, repository: Path) -> None:
    before = ask(client, "mlp", "scores", features=features(4))
    save_ir(repository / "mlp" / "1", scale=2.0)
    client.load_model("mlp")
    np.testing.assert_allclose(ask(client, "mlp", "scores", features=features(4)), 2 * before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("corrupt", "openvino error in reading model : "),
        ("wrong", "model 'wrong', tensor 'features': the model expects 2 dimensions (shape [-1,512])"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(client: Any, model: str, sentence: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(model)
    assert sentence in str(caught.value)


def test_a_request_of_another_shape_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'features'"):
        ask(client, "mlp", "scores", features=features(4)[:, :511])
