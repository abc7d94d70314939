"""What a trial on zeros finds of a TorchScript file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.cli.torch_files import config as completed
from shoal.workers.backends.pytorch_trial import main

# PyTorch advises against TorchScript whenever it is used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Words(nn.Module):
    """As a text model: ids and a mask of any length, two results by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        vectors = self.table(input_ids) * mask.unsqueeze(-1)
        return {"vectors": vectors, "lengths": mask.sum(dim=1)}


class Flat(nn.Module):
    """As a small classifier of images of 28 by 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(image)
        return found


class Fails(nn.Module):
    """Takes a list, which is no tensor."""

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return parts[0]


class Picky(nn.Module):
    """Runs on no shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 1000:
            raise ValueError("too few rows")
        return x


def found(module: nn.Module, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    script: Any = torch.jit.script(module.eval())
    script.save(f"{folder}/net.pt")
    main(f"{folder}/net.pt")
    return json.loads(capsys.readouterr().out)


def tensors(config: Any) -> list[tuple[str, str, list[int]]]:
    return [(each["name"], each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])]


@pytest.mark.parametrize(
    ("module", "max_batch_size", "expected"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4,
         [("input", "TYPE_FP32", [4]), ("OUTPUT__0", "TYPE_FP32", [3])]),
        (nn.Linear(4, 2).double(), 4, [("input", "TYPE_FP64", [4]), ("OUTPUT__0", "TYPE_FP64", [2])]),
        (Flat(), 4, [("image", "TYPE_FP32", [1, 28, 28]), ("OUTPUT__0", "TYPE_FP32", [10])]),
        (nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 4,
         [("input", "TYPE_FP32", [3, -1, -1]), ("OUTPUT__0", "TYPE_FP32", [2])]),
        (nn.Sequential(nn.Conv1d(2, 3, 3, padding=1)), 4,
         [("input", "TYPE_FP32", [2, -1]), ("OUTPUT__0", "TYPE_FP32", [3, -1])]),
        (nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), 4,
         [("input", "TYPE_FP32", [4]), ("OUTPUT__0", "TYPE_FP32", [1])]),
        (Words(), 4,
         [("input_ids", "TYPE_INT64", [-1]), ("mask", "TYPE_INT64", [-1]), ("vectors", "TYPE_FP32", [-1, 8]),
          ("lengths", "TYPE_INT64", [1])]),
    ],
    ids=["linear", "double", "flat", "convolution", "series", "no_dimension", "words"],
)  # fmt: skip
def test_what_a_model_takes(
    module: nn.Module,
    max_batch_size: int,
    expected: list[tuple[str, str, list[int]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = found(module, tmp_path, capsys)
    config = completed(said["max_batch_size"], said["inputs"], said["outputs"])
    assert (config["max_batch_size"], tensors(config)) == (max_batch_size, expected)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [(Fails(), "its arguments are not 1 to 4 tensors"), (Picky(), "none of [0-9]+ shapes ran, .*too few rows")],
    ids=["list", "picky"],
)
def test_what_cannot_be_tried(
    module: nn.Module, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.match(sentence, found(module, tmp_path, capsys)["error"])
