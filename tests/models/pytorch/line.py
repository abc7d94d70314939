import torch
from torch import Tensor, nn


class Line(nn.Module):
    """A layer; keywords and dictionaries in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(12).reshape(3, 4) / 10)
            self.layer.bias.copy_(torch.arange(3))

    def forward(self, x: Tensor, *, more: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": self.layer(x), "z": x + more["b"]}
