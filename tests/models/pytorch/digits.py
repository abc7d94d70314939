import torch
from torch import Tensor, nn


class Digits(nn.Module):
    """Which digit an image of 8 x 8 pixels shows."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.scores = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(torch.relu(self.hidden(images / 16)))
        return scores
