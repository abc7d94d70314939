"""The built-in handler `image_classifier`: the five most probable classes of an image."""

from __future__ import annotations

from typing import Any

from ts.handler_utils.timer import timed
from ts.torch_handler.image_processing import imagenet
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """A handler that answers a request with {label: probability} of the `topk` most probable classes."""

    topk = 5
    image_processing = imagenet()

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """For each image {label: probability} of its most probable classes."""
        import torch

        probabilities, classes = torch.topk(torch.nn.functional.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
