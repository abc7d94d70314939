"""The built-in handler `object_detector`: the boxes, labels and scores of objects in an image."""

from __future__ import annotations

from typing import Any

from ts.handler_utils.timer import timed
from ts.torch_handler.image_processing import Compose, ToTensor
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """A handler that answers a request with a list of {label: [x1, y1, x2, y2], "score": score}, for objects whose
    score is over `threshold`."""

    image_processing = Compose([ToTensor()])
    threshold = 0.5

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The objects in each image, from the model's output: for each image a dict of boxes, labels and scores."""
        answers = []
        for found in data:
            kept = found["scores"] > self.threshold
            boxes, labels, scores = (found[key][kept].tolist() for key in ("boxes", "labels", "scores"))
            named = map_class_to_label([[box] for box in boxes], self.mapping, [[label] for label in labels])
            answers.append([{**box, "score": score} for box, score in zip(named, scores, strict=True)])
        return answers
