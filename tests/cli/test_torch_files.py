"""shoal/cli/torch_files.py: the largest batch of a program of torch.export, from its first dimensions."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from shoal.cli.torch_files import tensors_of


class Twice(nn.Module):
    """One tensor in, one out, with as many rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize(
    ("rows", "max_batch_size", "dims"),
    [
        (Dim("rows", max=64), 64, [3]),
        (Dim("rows"), 4, [3]),
        (2 * Dim("half", max=100), 0, [-1, 3]),  # even numbers of rows alone
        (Dim("rows", min=3, max=8), 0, [-1, 3]),
        (None, 0, [4, 3]),
    ],
)
def test_a_batch_is_a_first_dimension_that_takes_every_number(
    tmp_path: Path, rows: Dim | None, max_batch_size: int, dims: list[int]
) -> None:
    program = torch.export.export(Twice(), (torch.zeros(4, 3),), dynamic_shapes=({0: rows} if rows else None,))
    torch.export.save(program, tmp_path / "model.pt2")
    found = tensors_of(tmp_path / "model.pt2")
    assert (found["max_batch_size"], found["input"][0]["dims"]) == (max_batch_size, dims)
