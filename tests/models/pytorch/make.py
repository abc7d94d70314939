"""Makes what lies beside this file: python tests/models/pytorch/make.py

digits.pt2, digits_weights.pt   one trained model, as a program of torch.export and as the weights of digits.py
line.pt2                        a program of torch.export with keywords and dictionaries
"""

from pathlib import Path

import numpy as np
import torch
from digits import Digits
from line import Line

HERE = Path(__file__).parent


def train() -> Digits:
    torch.manual_seed(0)
    arrays = np.load(HERE.parents[1] / "data" / "held_out_digits.npz")
    images = torch.from_numpy(arrays["images"].astype(np.float32))
    labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    model = Digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    right = (model(images).argmax(1) == labels).float().mean()
    print(f"digits: {right:.0%} of its training images right")
    return model.eval()


def save(name: str, program: torch.export.ExportedProgram) -> None:
    """Without the places in source files, which are those of whoever runs this."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(program, HERE / name)


def main() -> None:
    digits, rows = train(), torch.export.Dim("rows", min=1, max=64)
    torch.save(digits.state_dict(), HERE / "digits_weights.pt")
    save("digits.pt2", torch.export.export(digits, (torch.zeros(2, 64),), dynamic_shapes=({0: rows},)))
    # Two example tensors: of one that is given twice, a program believes that the two are always the same.
    arguments, keywords = (torch.zeros(2, 4),), {"more": {"b": torch.zeros(2, 4)}}
    shapes = {"x": {0: rows}, "more": {"b": {0: rows}}}
    save("line.pt2", torch.export.export(Line().eval(), arguments, keywords, dynamic_shapes=shapes))


if __name__ == "__main__":
    main()
