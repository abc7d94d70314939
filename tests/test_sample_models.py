"""The sample models answer rightly in ONNX Runtime itself, and their pages tell the truth."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"
NUMBERS = [1 - 2**31, -7, 0, 1, *range(100, 112)]


def run(model: str, outputs: list[str], inputs: dict[str, Any]) -> Any:
    """The outputs as ONNX Runtime computes them without Shoal: numpy arrays, which its hints do not promise."""
    path = REPOSITORY / model / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(outputs, inputs)


def held_out_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    with np.load(ROOT / "tests" / "data" / "held_out_digits.npz") as arrays:
        return arrays["images"].astype(np.float32), arrays["labels"]


@pytest.mark.parametrize("model", ["simple", "simple_string", "mlp", "digits", "encoder"])
def test_onnx_runtime_1_17_can_read_the_model(model: str) -> None:
    loaded = onnx.load(REPOSITORY / model / "1" / "model.onnx")
    assert loaded.ir_version <= 9
    assert max(opset.version for opset in loaded.opset_import if opset.domain == "") <= 20


def test_simple_adds_and_subtracts() -> None:
    left = np.array([range(16), NUMBERS], np.int32)
    right = np.array([[1] * 16, [1, -7, 5, 2, *range(12)]], np.int32)
    total, difference = run("simple", ["OUTPUT0", "OUTPUT1"], {"INPUT0": left, "INPUT1": right})
    assert total.tolist() == [list(range(1, 17)), [2 - 2**31, -14, 5, 3, *range(100, 124, 2)]]
    assert difference.tolist() == [list(range(-1, 15)), [-(2**31), 0, -5, -1, *[100] * 12]]


def test_simple_string_adds_and_subtracts_decimal_strings() -> None:
    left = np.array([["-12"] + ["2147483647"] + ["30"] * 14], object)
    right = np.array([["-30"] + ["0"] + ["12"] * 14], object)
    total, difference = run("simple_string", ["OUTPUT0", "OUTPUT1"], {"INPUT0": left, "INPUT1": right})
    assert total.tolist() == [["-42", "2147483647"] + ["42"] * 14]
    assert difference.tolist() == [["18", "2147483647"] + ["18"] * 14]


def test_mlp_is_two_layers_with_a_relu_between() -> None:
    graph = onnx.load(REPOSITORY / "mlp" / "1" / "model.onnx").graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    features = np.random.default_rng(1).standard_normal((3, 512), np.float32)
    hidden = np.maximum(features @ weights["hidden_weight"] + weights["hidden_bias"], 0)
    expected = hidden @ weights["output_weight"] + weights["output_bias"]
    (scores,) = run("mlp", ["scores"], {"features": features})
    assert scores.shape == (3, 10)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_digits_is_as_accurate_as_its_page_says() -> None:
    images, labels = held_out_digits()
    predicted, probabilities = run("digits", ["label", "probabilities"], {"image": images})
    num_right = int((predicted == labels).sum())
    assert num_right >= 0.97 * len(labels)
    page = (REPOSITORY / "digits" / "README.md").read_text()
    assert f"**Test accuracy: {num_right / len(labels):.4f}** ({num_right} of {len(labels)} images" in page
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=1) == predicted).all()


def test_digits_answers_its_example_request_as_its_page_says() -> None:
    request = json.loads((REPOSITORY / "digits" / "request.json").read_text())
    (image,) = request["inputs"]
    assert (image["name"], image["datatype"], image["shape"]) == ("image", "FP32", [1, 64])
    (probabilities,) = run("digits", ["probabilities"], {"image": np.array([image["data"]], np.float32)})
    page = (REPOSITORY / "digits" / "README.md").read_text()
    (shown,) = map(json.loads, re.findall(r"`(\[\"0.*?\])`", page))
    names = (REPOSITORY / "digits" / "labels.txt").read_text().splitlines()
    assert names == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for text, index in zip(shown, np.argsort(-probabilities[0])[:3], strict=True):
        probability, label_index, name = text.split(":")
        assert (int(label_index), name) == (index, names[index])
        assert float(probability) == pytest.approx(probabilities[0][index], abs=1e-5)
