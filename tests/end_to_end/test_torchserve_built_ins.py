"""TorchServe's built-in handlers on random weights, against the same models in this process: archives that the command
`torchserve` serves, asked over HTTP with `requests` and over gRPC with the stubs of TorchServe's files.

Here, too, is what else needs torch, since its import is dear: ranks that share tensors by gloo.
"""

import base64
import io
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
import torch
from PIL import Image

from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.test_torchserve_backend import DESCRIBED, MICRO
from tests.end_to_end.test_torchserve_sequences import END, ID, SEQUENCES, SUMS
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
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.end_to_end.torchserve_models import add_handler, pack
from tests.end_to_end.torchserve_stubs import INFERENCE, Prediction, Stub

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
#: Each rank multiplies what comes by its own number, from 1; the answer is the sum over all ranks.
SUMMING = """
import torch
import torch.distributed as dist


class Summing:
    def initialize(self, context):
        dist.init_process_group("gloo")

    def handle(self, data, context):
        total = torch.tensor([float(bytes(row["body"])) * (dist.get_rank() + 1) for row in data])
        dist.all_reduce(total)
        return [{"total": each, "world": dist.get_world_size()} for each in total.tolist()]
"""
RANKS = "parallelType: tp\ntorchrun: {nproc-per-node: 3}\n"
LABELS = {str(number): ["n0", f"animal {number}"] for number in range(6)}  # the seventh has none


#: The first load waits for the zygote that imports torch, at the low priority of what loads while others are served:
#: beside two busy loops that takes a minute. Later ones fork it.
LOAD_DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """The models of the archives, by name."""
    return {}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Any]) -> Iterator[TorchServe]:
    made, store = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("store")
    torch.manual_seed(0)
    models["eager"] = add_eager(made, "eager", "image_classifier", RESNET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's
        models["script"] = add_script(made, "script", "image_classifier", RESNET, torch.zeros(1, 3, 224, 224))
        directory = add_handler(made, "derived", DERIVED, manifest={"serializedFile": "double.pt"})
        save_script(torch.nn.Identity(), torch.zeros(1, 2), directory / "double.pt")
    models["detector"] = add_eager(made, "detector", "object_detector", DETECTOR)
    models["segmenter"] = add_eager(made, "segmenter", "image_segmenter", SEGMENTER)
    models["text"] = add_eager(made, "text", "text_classifier", TEXT)
    torch.save(VOCABULARY, made / "text" / "1" / "source_vocab.pt")
    label(made, "eager", LABELS)
    label(made, "detector", {"object_type_names": ["nothing", "cat", "dog", "bird"]})
    label(made, "text", {"0": "bad", "1": "good"})
    add_handler(made, "summing", SUMMING, yaml=RANKS)
    add_handler(made, "described", DESCRIBED)
    add_handler(made, "micro", MICRO)
    add_handler(made, "sums", SUMS, yaml=SEQUENCES)
    for each in made.iterdir():
        pack(each / "1", store / f"{each.name}.mar")
    with torchserve_command(tmp_path_factory.mktemp("server"), store, "", "--enable-model-api", "--dt") as served:
        yield served


@pytest.fixture(scope="module")
def stub(served: TorchServe) -> Iterator[Stub]:
    with Stub(served.grpc_inference_port, INFERENCE) as stub:
        yield stub


def predict(
    served: TorchServe,
    name: str,
    body: bytes,
    content_type: str = "image/png",
    path: str = "predictions",
    **headers: str,
) -> requests.Response:
    """The response over HTTP. The model is registered with the first request, which no request waits for."""
    models = f"http://127.0.0.1:{served.management_port}/models"
    if requests.get(f"{models}/{name}", timeout=DEADLINE_S).status_code == 404:
        asked = {"url": f"{name}.mar", "initial_workers": "1"}
        made = requests.post(models, params=asked, timeout=LOAD_DEADLINE_S)
        assert made.status_code == 200, made.text
    url = f"http://127.0.0.1:{served.inference_port}/{path}/{name}"
    return requests.post(url, body, headers={"Content-Type": content_type, **headers}, timeout=DEADLINE_S)


def answers(served: TorchServe, stub: Stub, name: str, *bodies: bytes) -> list[Any]:
    """What a model answers to each body, over HTTP and, the same, over gRPC."""
    told = []
    for body in bodies:
        response = predict(served, name, body)
        assert response.status_code == 200, response.text
        told.append(response.json())
        assert json.loads(stub.ask("Predictions", model_name=name, input={"data": body}).prediction) == told[-1]
    return told


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
    served: TorchServe, stub: Stub, models: dict[str, Any], name: str, labels: Any
) -> None:
    images = [picture(300, 400), picture(500, 256, seed=1), picture(64, 48, seed=2)]
    told = answers(served, stub, name, *images)
    expected = [most_probable(models[name], prepared(image), labels)[0] for image in images]
    for answer, each in zip(told, expected, strict=True):
        assert list(answer) == list(each)
        assert answer == pytest.approx(each, abs=1e-5)


def test_an_image_may_be_base64_text_or_the_tensors_values(served: TorchServe, models: dict[str, Any]) -> None:
    image = picture(256, 256)
    text = json.dumps(base64.b64encode(image).decode()).encode()
    values = json.dumps(prepared(image)[0].tolist()).encode()
    [expected] = most_probable(models["eager"], prepared(image), LABELS)
    for body in (text, values):
        assert predict(served, "eager", body, "application/json").json() == pytest.approx(expected, abs=1e-5)


def test_what_is_no_image_fails(served: TorchServe) -> None:
    refused = predict(served, "eager", b"no image")
    expected = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    assert (refused.status_code, refused.json()) == (503, expected)
    assert served.server.read_log(b"UnidentifiedImageError")


def test_objects_over_the_threshold_have_boxes_labels_and_scores(served: TorchServe, stub: Stub) -> None:
    white = io.BytesIO()
    Image.new("RGB", (8, 6), (51, 51, 51)).save(white, "PNG")  # a mean of 0.2
    [[found]] = answers(served, stub, "detector", white.getvalue())
    assert found["cat"] == [1.0, 2.0, 3.0, 4.0]
    assert found["score"] == pytest.approx(0.6)
    assert list(found) == ["cat", "score"]


def test_each_pixel_has_a_class_and_its_probability(served: TorchServe, models: dict[str, Any]) -> None:
    image = picture(256, 300)
    answer = torch.tensor(predict(served, "segmenter", image).json())
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
    served: TorchServe, stub: Stub, models: dict[str, Any], text: str, tokens: list[int]
) -> None:
    with torch.inference_mode():
        scores = models["text"](torch.tensor(tokens), torch.tensor([0])).softmax(dim=1)[0].tolist()
    [told] = answers(served, stub, "text", text.encode())
    assert told == pytest.approx(dict(zip(("bad", "good"), scores, strict=True)), abs=1e-5)


def test_a_handler_derived_from_the_base_gets_its_model_loaded(served: TorchServe, stub: Stub) -> None:
    assert answers(served, stub, "derived", b"[1, 2]", b"[3.5, 4]") == [{"sum": 3.0}, {"sum": 7.5}]


def test_a_handler_that_predicts_explains_and_describes_itself(served: TorchServe, stub: Stub) -> None:
    assert predict(served, "described", b"x").content == b"predicted"
    form = "application/x-www-form-urlencoded"
    assert predict(served, "described", b"data=x&target=3", form, "explanations").json() == {"target": 3}
    assert stub.ask("Predictions", model_name="described", input={"data": b"x"}).prediction == b"predicted"
    models = f"http://127.0.0.1:{served.management_port}/models"
    (told,) = requests.get(f"{models}/described?customized=true", timeout=DEADLINE_S).json()
    assert told["customizedMetadata"] == {"answers": "to everything"}


def test_micro_batches(served: TorchServe, stub: Stub) -> None:
    assert predict(served, "micro", b"a").content == b"a0"
    assert stub.ask("Predictions", model_name="micro", input={"body": b"b"}).prediction == b"b0"


def test_sequences(served: TorchServe, stub: Stub) -> None:
    begun = predict(served, "sums", b"1")
    fields = {ID: begun.headers[ID]}
    assert predict(served, "sums", b"2", **fields).json()["sum"] == 3
    ended = predict(served, "sums", b"end", **fields)
    assert (ended.json()["sum"], ended.headers[END]) == (3, fields[ID])
    asked = [Prediction(model_name="sums", sequenceId="a", input={"data": word}) for word in (b"5", b"6", b"end")]
    told = [json.loads(each.prediction)["sum"] for each in stub.converse("StreamPredictions2", asked)]
    assert told == [5, 11, 11]


def test_ranks_share_tensors_by_gloo(served: TorchServe) -> None:
    response = predict(served, "summing", b"1.5")
    assert (response.status_code, response.json()) == (200, {"total": 1.5 * (1 + 2 + 3), "world": 3})
