"""The samples written in Python, run by this interpreter without a server, and the page of the text classifier."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import triton_python_backend_utils as pb_utils

from scripts.topics import TOPICS, held_out

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"
PAGE = (REPOSITORY / "text_classification" / "README.md").read_text()
Array = npt.NDArray[Any]


def load(name: str) -> Any:
    """The model as its server would load it."""
    path = REPOSITORY / name / "1" / "model.py"
    spec = importlib.util.spec_from_file_location(f"sample_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    if hasattr(model, "initialize"):
        model.initialize({"model_repository": str(REPOSITORY / name), "model_config": config_of(name)})
    return model


def config_of(name: str) -> str:
    """What of the configuration the samples read: their outputs."""
    text = (REPOSITORY / name / "config.pbtxt").read_text().partition("output [")[2]
    outputs = re.findall(r'name: "(\w+)"\n\s*data_type: (\w+)', text)
    return json.dumps({"output": [{"name": output, "data_type": datatype} for output, datatype in outputs]})


def ask(model: Any, **inputs: Array) -> Any:
    """The only response to one request."""
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    [response] = model.execute([pb_utils.InferenceRequest(inputs=tensors, requested_output_names=[], model_name="m")])
    return response


def outputs(response: Any) -> dict[str, Array]:
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def column(*texts: bytes) -> Array:
    return np.array(texts, np.object_)[:, np.newaxis]


def pieces(ids: list[int]) -> list[str]:
    vocabulary = (REPOSITORY / "tokenizer" / "1" / "vocabulary.txt").read_text().splitlines()
    return [vocabulary[number] for number in ids]


def logits_of(input_ids: Array, attention_mask: Array) -> Array:
    session = onnxruntime.InferenceSession(
        REPOSITORY / "encoder" / "1" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    result: Any = session.run(["logits"], {"input_ids": input_ids, "attention_mask": attention_mask})
    return np.asarray(result[0])


# --- the tokenizer ---


def test_words_are_taken_apart_into_their_longest_known_pieces() -> None:
    found = outputs(ask(load("tokenizer"), text=column(b"The wind, the SNOW", "Überzug 2".encode())))
    first, second = found["input_ids"].tolist()
    assert pieces(first)[:2] == ["the", "wind"]
    assert first[2] == 1  # no comma in the text that it was trained on
    assert pieces(second[:2]) == ["[UNK]", "[UNK]"]
    assert second[2:] == [0] * (len(first) - 2)
    assert found["attention_mask"].tolist() == [[1] * len(first), [1, 1, *[0] * (len(first) - 2)]]
    assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize("word", ["hurricanes", "unsung", "a", "zzz"])
def test_pieces_put_together_are_the_word(word: str) -> None:
    [ids] = outputs(ask(load("tokenizer"), text=column(word.encode())))["input_ids"].tolist()
    found = pieces(ids)
    assert "".join(piece.removeprefix("##") for piece in found) == word
    assert [piece.startswith("##") for piece in found] == [False] + [True] * (len(found) - 1)


def test_a_text_of_nothing_and_one_that_is_no_utf_8_are_tokenized() -> None:
    found = outputs(ask(load("tokenizer"), text=column(b"", b"\xff snow")))
    assert found["attention_mask"].sum(axis=1).tolist() == [1, len(found["input_ids"][1])]
    assert found["input_ids"][:, 0].tolist() == [1, 1]


def test_a_long_text_is_cut() -> None:
    assert outputs(ask(load("tokenizer"), text=column(b"snow " * 100)))["input_ids"].shape == (1, 64)


# --- the rest of the pipeline ---


def test_padding_changes_nothing() -> None:
    tokenizer = load("tokenizer")
    [alone] = logits_of(**outputs(ask(tokenizer, text=column(b"thunder and lightning"))))
    beside = logits_of(**outputs(ask(tokenizer, text=column(b"thunder and lightning", b"the piano " * 20))))
    np.testing.assert_allclose(beside[0], alone, rtol=1e-4, atol=1e-4)


def test_postprocessing_names_the_likeliest() -> None:
    logits = np.array([[0, 1000, -1000, 0, 0], [np.log(2), 0, 0, 0, np.log(4)]], np.float32)
    found = outputs(ask(load("postprocessing"), logits=logits))
    assert found["label"].tolist() == [["sport"], ["travel"]]
    np.testing.assert_allclose(found["probability"], np.array([[1], [4 / 9]]), rtol=1e-6)
    np.testing.assert_allclose(found["probabilities"][1] * 9, [2, 1, 1, 1, 4], rtol=1e-6)
    assert (REPOSITORY / "postprocessing" / "labels.txt").read_text().split() == list(TOPICS)


def test_the_classifier_is_as_accurate_as_its_page_says() -> None:
    texts = held_out()
    tokens = outputs(ask(load("tokenizer"), text=column(*(sentence.text.encode() for sentence in texts))))
    found = logits_of(**tokens)
    num_right = int((found.argmax(axis=1) == [sentence.topic for sentence in texts]).sum())
    assert num_right >= 0.8 * len(texts)
    assert f"**Test accuracy: {num_right / len(texts):.4f}** ({num_right} of {len(texts)} sentences" in PAGE


# --- the others ---


def test_the_table_holds_the_encoders_vectors() -> None:
    graph = onnx.load(REPOSITORY / "encoder" / "1" / "model.onnx").graph
    [table] = [onnx.numpy_helper.to_array(each) for each in graph.initializer if each.name == "table"]
    vectors = np.load(REPOSITORY / "embedding_table" / "1" / "vectors.npy")
    np.testing.assert_array_equal(vectors, table)


def test_add_sub_adds_and_subtracts() -> None:
    left, right = np.array([1, 2, 3, 4], np.float32), np.array([4, 3, 2, 0.5], np.float32)
    found = outputs(ask(load("add_sub"), INPUT0=left, INPUT1=right))
    assert found["OUTPUT0"].tolist() == [5, 5, 5, 4.5]
    assert found["OUTPUT1"].tolist() == [-3, -1, 1, 3.5]
