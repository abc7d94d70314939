"""Models of ONNX, OpenVINO, PyTorch, TensorFlow and forests behind one server: each answers as its framework does, is
batched, completed, reloaded, and refused in words.

Rows of TensorFlow are skipped without it: `pip install 'shoal[tensorflow,dev]'`, then `pytest -k tensorflow`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from shoal.cli import torch_files
from tests.end_to_end import backend_models as models
from tests.end_to_end.asking import tensors
from tests.end_to_end.backend_models import FORESTS, IMAGES, features
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end
from tests.end_to_end.tutorials import ROOT, Reader

# PyTorch advises against TorchScript whenever it is used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
Array = NDArray[Any]
Inputs = dict[str, Array]

#: The models that are not loaded with the server; what they are refused with is below.
BROKEN = (
    "onnx_two_elements", "onnx_missing", "onnx_no_library", "openvino_corrupt", "openvino_wrong", "torch_corrupt",
    "forest_narrow", "tensorflow_corrupt", "tensorflow_wrong",
)  # fmt: skip
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for write in (models.write_onnx, models.write_openvino, models.write_pytorch, models.write_forests):
        write(root)
    if models.HAS_TENSORFLOW:
        models.write_tensorflow(root)
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    loaded = [f"--load-model={each.name}" for each in repository.iterdir() if each.name not in BROKEN]
    with serving_to_the_end(repository, "--model-control-mode=explicit", *loaded) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(
        server.url, concurrency=8, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    ) as connected:
        yield connected


def rows(*cases: tuple[Any, ...]) -> list[Any]:
    """Cases under the name of their model, which stands first; those of TensorFlow only where it is."""
    without = pytest.mark.skipif(not models.HAS_TENSORFLOW, reason="needs TensorFlow: pip install 'shoal[tensorflow]'")
    return [pytest.param(*each, id=each[0], marks=[without] * each[0].startswith("tensorflow")) for each in cases]


def ask(client: Any, model: str, inputs: Inputs) -> Array:
    """The model's output, the first if there are several."""
    result = client.infer(model, tensors(inputs))
    answer: Array = result.as_numpy(result.get_response()["outputs"][0]["name"])
    return answer


def assert_close(answer: Array, expected: Array) -> None:
    assert answer.shape == expected.shape
    if answer.dtype == object:
        assert answer.tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def forest(model_type: str) -> tuple[Inputs, Callable[[], Array]]:
    """All rows at once, and what its framework has answered."""
    return {"input__0": FORESTS[f"{model_type}_inputs"]}, lambda: FORESTS[f"{model_type}_scores"]


def scalar(dims: list[int]) -> tuple[str, Inputs, Callable[[], Array]]:
    return f"onnx_scalar_{len(dims)}", {"X": np.full(dims, 3, np.float32)}, lambda: np.full(dims, -3, np.float32)


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    rows(
        *map(scalar, models.SCALAR_DIMS),
        ("onnx_string_scalar", {"X": np.array([["shoal"]], object)}, lambda: np.array([[b"shoal"]], object)),
        ("onnx_rank_unknown", {"X": np.array([[3]], np.float32)}, lambda: np.array([[-3]])),
        *((f"onnx_{each}", {"X": ROWS}, lambda: 2 * ROWS) for each in ("in_version", "in_model", "absolute")),
        ("openvino_mlp", {"features": features(4)}, partial(models.openvino, models.MLP, features(4))),
        ("openvino_found_by_its_file", {"features": features(3)}, partial(models.openvino, models.MLP, features(3))),
        ("openvino_encoder", models.ENCODED, partial(models.openvino, models.ENCODER, models.ENCODED)),
        ("openvino_digits", {"pixels": IMAGES[300:]}, partial(models.openvino, models.SAVED_MODEL, IMAGES[300:])),
        *((f"forest_{each}", *forest(each)) for each in models.FOREST_TYPES),
        ("forest_described", *forest("xgboost_ubj")),
        ("tensorflow_found_by_its_file", {"pixels": IMAGES[:3]}, partial(models.tensorflow, IMAGES[:3])),
        ("tensorflow_upper", {"TEXT": np.array([[b"ab\0c"], [b""]], object)},
         lambda: np.array([[b"AB\0C"], [b""]], object)),
        ("tensorflow_frozen", {"X": np.ones((2, 2), np.float32)}, lambda: np.full((2, 2), 3)),
    ),
)  # fmt: skip
def test_an_answer_is_the_framework_s_own(
    client: Any, model: str, inputs: Inputs, expected: Callable[[], Array]
) -> None:
    assert_close(ask(client, model, inputs), expected())


@pytest.mark.parametrize("model", ["torch_script", "torch_export", "torch_eager"])
def test_a_trained_model_answers_the_same_in_every_form_of_pytorch(client: Any, model: str) -> None:
    for start in range(0, 40, 8):  # full batches, which wait for no other
        images = IMAGES[start : start + 8]
        assert_close(ask(client, model, {models.FORMS[model][1]: images}), models.pytorch(images))


def test_a_trained_model_of_tensorflow_is_right_under_openvino(client: Any) -> None:
    scores = ask(client, "openvino_digits", {"pixels": IMAGES[300:]})
    assert np.mean(scores.argmax(axis=1) == models.HELD_OUT["labels"][300:]) > 0.85


def executions(client: Any, model: str) -> dict[int, int]:
    """Rows → how many executions had so many."""
    (row,) = client.get_inference_statistics(model)["model_stats"]
    return {each["batch_size"]: each["compute_infer"]["count"] for each in row["batch_stats"]}


@pytest.mark.parametrize(
    ("model", "name", "array", "parts", "expected"),
    rows(
        ("openvino_mlp", "features", features(4, seed=1), 4, partial(models.openvino, models.MLP)),
        ("torch_script", "INPUT__0", IMAGES[:8], 8, models.pytorch),
        ("forest_lightgbm", "input__0", FORESTS["lightgbm_inputs"], 4, lambda _: FORESTS["lightgbm_scores"]),
        ("tensorflow_digits", "pixels", IMAGES[300:304], 4, models.tensorflow),
    ),
)
def test_several_requests_are_one_execution(
    client: Any, model: str, name: str, array: Array, parts: int, expected: Callable[[Array], Array]
) -> None:
    before = executions(client, model)
    asked = [client.async_infer(model, tensors({name: part})) for part in np.split(array, parts)]
    answers = [each.get_result(timeout=DEADLINE_S) for each in asked]
    (output,) = answers[0].get_response()["outputs"]
    assert_close(np.concatenate([each.as_numpy(output["name"]) for each in answers]), expected(array))
    assert executions(client, model) == before | {len(array): before.get(len(array), 0) + 1}


@pytest.mark.parametrize(
    ("model", "expected"),
    rows(
        ("openvino_found_by_its_file", {"backend": "openvino", "max_batch_size": 4, "input": [("features", [512])]}),
        ("forest_described", {"input": [("input__0", [13])], "output": [("output__0", [3])]}),
        (
            "tensorflow_found_by_its_file",
            {"backend": "tensorflow", "platform": "tensorflow_savedmodel", "max_batch_size": 4, "instance_count": 2},
        ),
    ),
)
def test_what_a_configuration_leaves_out_is_found_in_the_file(
    client: Any, model: str, expected: dict[str, object]
) -> None:
    config = client.get_model_config(model)
    for ends in ("input", "output"):
        config[ends] = [(each["name"], each["dims"]) for each in config[ends]]
    config["instance_count"] = config["instance_group"][0]["count"]
    assert {key: config[key] for key in expected} == expected
    assert "dynamic_batching" in config


@pytest.mark.parametrize("dims", models.SCALAR_DIMS, ids=str)
def test_the_shape_of_a_tensor_without_one_is_its_configuration_s(client: Any, dims: list[int]) -> None:
    assert client.get_model_metadata(f"onnx_scalar_{len(dims)}")["outputs"][0]["shape"] == dims


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    rows(
        ("openvino_mlp", {"features": features(4)[:, :511]}, "unexpected shape for input 'features'"),
        ("torch_eager", {"images": IMAGES[:1, :60]}, "unexpected shape for input 'images'"),
        # The configuration says 60, the model 64.
        ("torch_narrow", {"INPUT__0": IMAGES[:1, :60]}, r"(?s)PyTorch execute failure: .*cannot be multiplied \(1x60"),
        ("forest_xgboost", {"input__0": np.zeros((40, 9), np.float32)},
         "unexpected shape for input 'input__0' for model 'forest_xgboost'"),
        ("tensorflow_frozen", {"X": np.ones((1, 3), np.float32)}, "unexpected shape for input 'X'"),
    ),
)  # fmt: skip
def test_a_request_of_another_shape_is_refused(client: Any, model: str, inputs: Inputs, sentence: str) -> None:
    with pytest.raises(InferenceServerException, match=sentence):
        ask(client, model, inputs)


@pytest.mark.parametrize(
    ("model", "words"),
    rows(
        ("onnx_two_elements", [
            "unable to load model 'onnx_two_elements', scalar tensor 'X', should only provide 1 in the model "
            "configuration when the model doesn't support batching. Model configuration provided: [1,2]."]),
        ("onnx_missing", ["onnx runtime error 1: ", "nowhere.so", "cannot open shared object file",
                          "op_library_filename", "/onnx_missing/1"]),
        ("onnx_no_library", ["onnx runtime error 1: ", "model.onnx", "invalid ELF header",
                             "op_library_filename", "/onnx_no_library/1"]),
        ("openvino_corrupt", ["openvino error in reading model : "]),
        ("openvino_wrong", [
            "model 'openvino_wrong', tensor 'features': the model expects 2 dimensions (shape [-1,512])"]),
        ("torch_corrupt", ["failed to load model 'torch_corrupt': ", " is no PyTorch archive"]),
        ("forest_narrow", [
            "tensor 'input__0': the model expects 2 dimensions (shape [-1,13]) but the model configuration"]),
        ("tensorflow_corrupt", ["unable to load model 'tensorflow_corrupt': Cannot parse file"]),
        ("tensorflow_wrong", [
            "model 'tensorflow_wrong', tensor 'pixels': the model expects 2 dimensions (shape [-1,64])"]),
    ),
)  # fmt: skip
def test_a_model_that_cannot_be_loaded_says_why_and_nothing_else_changes(
    client: Any, model: str, words: list[str]
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(model)
    (row,) = [row for row in client.get_model_repository_index() if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    for word in words:
        assert word in str(caught.value)
        assert word in row["reason"]
    with pytest.raises(InferenceServerException, match=f"'{model}'"):
        ask(client, model, {"X": ROWS})
    assert client.is_model_ready("torch_eager")


@pytest.mark.parametrize(
    ("model", "inputs", "change", "expected"),
    rows(
        ("openvino_mlp", {"features": features(4)},
         lambda root: models.save_ir(root / "openvino_mlp" / "1", scale=2.0), lambda before: 2 * before),
        ("torch_script", {"INPUT__0": IMAGES[:8]},
         lambda root: models.save_script(root, bias=1.0), lambda _: models.pytorch(IMAGES[:8], bias=1.0)),
        ("forest_changing", forest("lightgbm")[0],
         lambda root: models.add_forest(root, "forest_changing", "lightgbm"), lambda _: FORESTS["lightgbm_scores"]),
        ("tensorflow_scaled", {"X": np.ones((1, 2), np.float32)},
         lambda root: models.save_scaled(root, 5.0), lambda before: 2.5 * before),
    ),
)  # fmt: skip
def test_a_reload_serves_the_new_file(
    client: Any,
    repository: Path,
    model: str,
    inputs: Inputs,
    change: Callable[[Path], object],
    expected: Callable[[Array], Array],
) -> None:
    before = ask(client, model, inputs)
    change(repository)
    assert_close(ask(client, model, inputs), before)
    client.load_model(model)
    np.testing.assert_allclose(ask(client, model, inputs), expected(before), rtol=1e-4, atol=1e-5)


def test_the_tutorial(server: Server, repository: Path, tmp_path: Path) -> None:
    """docs/tutorials/pytorch.md, on a server that has imported PyTorch already."""
    reader = Reader(tmp_path, server, repository)
    reader.read((ROOT / "docs" / "tutorials" / "pytorch.md").read_text())
    assert reader.num_compared == 4
    exported = torch_files.tensors_of(repository / "torch_export" / "1" / "model.pt2")
    assert [each["dims"] for each in (*exported["input"], *exported["output"])] == [[64], [10]]


def test_a_corrupt_file_leaves_the_old_one_serving(client: Any, repository: Path) -> None:
    (repository / "forest_lightgbm" / "1" / "model.txt").write_text("tree\nbut no forest\n")
    with pytest.raises(
        InferenceServerException, match=r"model\.txt' cannot be read as lightgbm: .*Ill-formed LightGBM"
    ):
        client.load_model("forest_lightgbm")
    inputs, expected = forest("lightgbm")
    assert_close(ask(client, "forest_lightgbm", inputs), expected())
