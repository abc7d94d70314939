"""The built-in handler `image_segmenter`: the class of each pixel of an image."""

from __future__ import annotations

from typing import Any

from ts.handler_utils.timer import timed
from ts.torch_handler.image_processing import imagenet
from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """A handler that answers a request with 224 × 224 pairs of the most probable class and its probability."""

    image_processing = imagenet()

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The class of each pixel, from the model's output: a dict that has the classes' scores under `out`."""
        import torch

        probabilities, classes = torch.max(torch.nn.functional.softmax(data["out"], dim=1), dim=1, keepdim=True)
        pairs = torch.stack([classes.type(probabilities.dtype), probabilities], dim=4)
        result: list[Any] = pairs.squeeze(1).tolist()
        return result
