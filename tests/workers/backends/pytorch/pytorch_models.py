"""Models small enough to be made by the tests, and how the tests have them served."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.errors import ShoalError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.pytorch.backend import PytorchBackend
from tests.workers.worker_harness import model, model_config, tensor_config

CPU = Device("KIND_CPU", 0, (0,))
X = np.arange(8, dtype=np.float32).reshape(2, 4)
#: PyTorch advises against TorchScript whenever it is used; and against a class of its own that it uses itself.
WARNINGS = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]


class Sum(nn.Module):
    """Two tensors in, two out."""

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left + right, left - right


class Table(nn.Module):
    """A dictionary in, one out."""

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": tensors["left"] + tensors["right"], "difference": tensors["left"] - tensors["right"]}


class Nested(nn.Module):
    """Containers beside a tensor."""

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor], more: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return x + pair[0] - pair[1], [more[0] * 2, more[1] * 3]


class Texts(nn.Module):
    """Strings beside numbers, in and out."""

    def forward(self, texts: list[str], x: Tensor) -> tuple[list[str], Tensor]:
        return [text + "!" for text in texts], x + len(texts)


class Sums(nn.Module):
    """Of each request's elements, by how many it has."""

    def forward(self, x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        whose = torch.repeat_interleave(counts.long())
        return x * 2, torch.zeros(counts.size(0)).index_add(0, whose, x)[:, None]


class Rest(nn.Module):
    """Strings without the first."""

    def forward(self, texts: list[str]) -> list[str]:
        return texts[1:]


class Odd(nn.Module):
    """Returns what it was given to return."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "scalar":
            return x.sum()
        if self.kind == "double":
            return x.double()
        if self.kind == "written":
            return x.add_(1)
        if self.kind == "grad":
            return x * self.weight
        assert x.shape[-1] == 7, "seven it must be"
        return x


class Twice(nn.Module):
    """Uses an operator of torchvision; so it is called, but there is no such."""

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = torch.ops.torchvision.twice(x)
        return doubled


def config(inputs: list[str], outputs: list[str], data_type: str = "TYPE_FP32", **fields: Any) -> dict[str, Any]:
    """All tensors of one type and four elements a row."""
    return model_config(
        [tensor_config(name, data_type, [4]) for name in inputs],
        [tensor_config(name, data_type, [4]) for name in outputs],
        **{"backend": "pytorch", **fields},
    )


def loaded(file: str | Path, config: dict[str, Any], device: Device = CPU) -> PytorchBackend:
    backend = PytorchBackend()
    backend.load(model(config, str(file)), device)
    return backend


def refusal(file: str | Path, config: dict[str, Any]) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        loaded(file, config)
    return caught.value


def scripted(folder: Path, module: nn.Module) -> Path:
    made: Any = torch.jit.script(module.eval())
    made.save(folder / "model.pt")
    return folder / "model.pt"
