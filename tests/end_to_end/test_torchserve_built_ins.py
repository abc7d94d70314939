"""TorchServe's built-in handlers on random weights, against the same models in this process."""

import base64
import io
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import Server, serving_to_the_end
from tests.end_to_end.test_torchserve_backend import predict, refusal
from tests.end_to_end.torch_archives import (
    DETECTOR,
    RESNET,
    SEGMENTER,
    TEXT,
    VOCABULARY,
    add_eager,
    add_script,
    label,
    picture,
    save_script,
)
from tests.end_to_end.torchserve_models import add_handler

#: What users write most: a handler of their own, with the model's loading inherited.
DERIVED = """
import json

import torch

from ts.torch_handler.base_handler import BaseHandler


class Doubling(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        rows = [json.loads(row) if isinstance(row, (bytes, bytearray)) else row for row in rows]
        return torch.tensor(rows, dtype=torch.float32)

    def postprocess(self, output):
        return [{"sum": value} for value in output.sum(dim=1).tolist()]
"""
LABELS = {str(number): ["n0", f"animal {number}"] for number in range(6)}  # the seventh has none


#: The first load waits for the zygote that imports torch, at the low priority of what loads while others are served:
#: beside two busy loops that takes a minute. Later ones fork it.
LOAD_DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """The models of the archives, by name."""
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Any]) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("store")
    torch.manual_seed(0)
    models["eager"] = add_eager(store, "eager", "image_classifier", RESNET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's
        models["script"] = add_script(store, "script", "image_classifier", RESNET, torch.zeros(1, 3, 224, 224))
        directory = add_handler(store, "derived", DERIVED, manifest={"serializedFile": "double.pt"})
        save_script(torch.nn.Identity(), torch.zeros(1, 2), directory / "double.pt")
    models["detector"] = add_eager(store, "detector", "object_detector", DETECTOR)
    models["segmenter"] = add_eager(store, "segmenter", "image_segmenter", SEGMENTER)
    models["text"] = add_eager(store, "text", "text_classifier", TEXT)
    torch.save(VOCABULARY, store / "text" / "1" / "source_vocab.pt")
    label(store, "eager", LABELS)
    label(store, "detector", {"object_type_names": ["nothing", "cat", "dog", "bird"]})
    label(store, "text", {"0": "bad", "1": "good"})
    with serving_to_the_end(store, "--model-control-mode=explicit") as server:
        yield server


def answers(server: Server, name: str, *bodies: bytes, about: Any = None) -> list[bytes]:
    """The bodies of a model's answers. The model is loaded with the first."""
    if fetch(server.http_port, f"/v2/models/{name}/ready").status != 200:
        loaded = fetch(server.http_port, f"/v2/repository/models/{name}/load", {}, deadline_s=LOAD_DEADLINE_S)
        assert loaded.status == 200, loaded.body
    return predict(server, name, *bodies, about=about)[0]


def prepared(data: bytes) -> torch.Tensor:
    """An image as ImageNet's classifiers get it, by Pillow's own resize and slices of the array."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    scale = 256 / min(width, height)
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    assert min(size) == 256 == round(min(width, height) * scale)
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).astype(np.float32) / np.float32(255)
    top, left = (pixels.shape[0] - 224) // 2, (pixels.shape[1] - 224) // 2
    middle = pixels[top : top + 224, left : left + 224]
    normal = (middle - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
    return torch.from_numpy(normal.transpose(2, 0, 1)).unsqueeze(0)


def most_probable(model: Any, images: torch.Tensor, labels: Any) -> list[dict[str, float]]:
    with torch.inference_mode():
        probabilities, classes = model(images).softmax(dim=1).topk(5, dim=1)
    return [
        {labels.get(str(number), [str(number)])[-1]: each for number, each in zip(numbers, row, strict=True)}
        for numbers, row in zip(classes.tolist(), probabilities.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("name", "labels"), [("eager", LABELS), ("script", {})])
def test_an_image_has_its_five_most_probable_classes(
    server: Server, models: dict[str, Any], name: str, labels: Any
) -> None:
    images = [picture(300, 400), picture(500, 256, seed=1), picture(64, 48, seed=2)]
    bodies = answers(server, name, *images)
    expected = [most_probable(models[name], prepared(image), labels)[0] for image in images]
    for body, each in zip(bodies, expected, strict=True):
        answer = json.loads(body)
        assert list(answer) == list(each)
        assert answer == pytest.approx(each, abs=1e-5)


def test_an_image_may_be_base64_text_or_the_tensors_values(server: Server, models: dict[str, Any]) -> None:
    image = picture(256, 256)
    about = {"content_type": "application/json"}
    text = answers(server, "eager", json.dumps(base64.b64encode(image).decode()).encode(), about=about)
    values = answers(server, "eager", json.dumps(prepared(image)[0].tolist()).encode(), about=about)
    [expected] = most_probable(models["eager"], prepared(image), LABELS)
    for body in (*text, *values):
        assert json.loads(body) == pytest.approx(expected, abs=1e-5)


def test_what_is_no_image_fails(server: Server) -> None:
    answers(server, "eager", picture(256, 256))
    assert "UnidentifiedImageError" in refusal(server, "eager", b"no image")


def test_objects_over_the_threshold_have_boxes_labels_and_scores(server: Server) -> None:
    white = io.BytesIO()
    Image.new("RGB", (8, 6), (51, 51, 51)).save(white, "PNG")  # a mean of 0.2
    [body] = answers(server, "detector", white.getvalue())
    [found] = json.loads(body)
    assert found["cat"] == [1.0, 2.0, 3.0, 4.0]
    assert found["score"] == pytest.approx(0.6)
    assert list(found) == ["cat", "score"]


def test_each_pixel_has_a_class_and_its_probability(server: Server, models: dict[str, Any]) -> None:
    image = picture(256, 300)
    [body] = answers(server, "segmenter", image)
    answer = torch.tensor(json.loads(body))
    with torch.inference_mode():
        probabilities, classes = models["segmenter"](prepared(image))["out"].softmax(dim=1)[0].max(dim=0)
    assert answer.shape == (224, 224, 2)
    assert torch.equal(answer[:, :, 0].long(), classes)
    torch.testing.assert_close(answer[:, :, 1], probabilities)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It's good", [1, 2, 3, 5, 6]),
        ("<b>Café</b>!", [4]),
        ("IT is nothing", [1, 2, 0, 5, 0]),
    ],
)
def test_a_text_has_the_probabilities_of_its_classes(
    server: Server, models: dict[str, Any], text: str, tokens: list[int]
) -> None:
    with torch.inference_mode():
        scores = models["text"](torch.tensor(tokens), torch.tensor([0])).softmax(dim=1)[0].tolist()
    [body] = answers(server, "text", text.encode())
    assert json.loads(body) == pytest.approx(dict(zip(("bad", "good"), scores, strict=True)), abs=1e-5)


def test_a_handler_derived_from_the_base_gets_its_model_loaded(server: Server) -> None:
    bodies = answers(server, "derived", b"[1, 2]", b"[3.5, 4]")
    assert [json.loads(body) for body in bodies] == [{"sum": 3.0}, {"sum": 7.5}]
