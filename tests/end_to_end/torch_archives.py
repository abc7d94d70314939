"""Archives for TorchServe's built-in handlers, with random weights: a residual network, a detector, a segmenter and a
text classifier, in plain torch, eager and TorchScript."""

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.end_to_end.torchserve_models import add_handler

RESNET = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 7, stride=8, padding=3), nn.BatchNorm2d(8), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, 7)

    def forward(self, images):
        features = self.first(images)
        features = features + self.inner(features)
        return self.last(features.mean(dim=(2, 3)))
"""
#: The module defines one class, as `modelFile` must; the parts of others are nn's.
DETECTOR = """
import torch
from torch import nn


class Detector(nn.Module):
    def forward(self, images):
        boxes = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 6.0, 7.0]])
        scores = images.mean(dim=(1, 2, 3))
        return [
            {"boxes": boxes, "labels": torch.tensor([1, 2, 3]), "scores": torch.stack([s + 0.4, s * 0, s + 0.2])}
            for s in scores
        ]
"""
SEGMENTER = """
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.classify = nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return {"out": self.classify(images)}
"""
TEXT = """
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(8, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, text, offsets):
        return self.last(self.embedding(text, offsets))
"""
VOCABULARY = {"<unk>": 0, "it": 1, "is": 2, "good": 3, "cafe": 4, "it is": 5, "is good": 6}


def make(source: str, directory: Path) -> Any:
    """The model that a model file's one class makes, with random weights."""
    path = directory / "model.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"archived_{directory.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [made] = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    return made().eval()


def add_eager(repository: Path, name: str, handler: str, source: str) -> Any:
    """An archive of a model file and a state dict; the model."""
    manifest = {"modelFile": "model.py", "serializedFile": "weights.pth"}
    directory = add_handler(repository, name, handler=handler, manifest=manifest)
    model = make(source, directory)
    torch.save(model.state_dict(), directory / "weights.pth")
    return model


def add_script(repository: Path, name: str, handler: str, source: str, example: torch.Tensor) -> Any:
    """An archive of a TorchScript file alone; the model."""
    directory = add_handler(repository, name, handler=handler, manifest={"serializedFile": "model.pt"})
    model = make(source, directory)
    (directory / "model.py").unlink()
    save_script(model, example, directory / "model.pt")
    return model


def save_script(model: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    """Write a model as TorchScript, traced with an example of its input."""
    trace: Any = torch.jit.trace  # which has no types
    trace(model, example).save(path)


def label(repository: Path, name: str, labels: Any) -> None:
    """Give an archive an index_to_name.json."""
    (repository / name / "1" / "index_to_name.json").write_text(json.dumps(labels))


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> bytes:
    """A PNG file of noise."""
    generator = torch.Generator().manual_seed(seed)
    channels = len(mode)
    pixels = torch.randint(0, 256, (height, width, channels), dtype=torch.uint8, generator=generator)
    array = pixels.numpy() if channels > 1 else pixels.numpy()[:, :, 0]
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()
