"""Logits to the likeliest label and the probabilities of all."""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`logits` -> `label`, `probability` and `probabilities`, each one row per row."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the names; `model_repository` is the directory of this model."""
        labels = Path(args["model_repository"], "labels.txt").read_text(encoding="utf-8").splitlines()
        self.labels = np.array(labels, dtype=object)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer each request by itself."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        probabilities = softmax(pb_utils.get_input_tensor_by_name(request, "logits").as_numpy())
        best = probabilities.argmax(axis=1)[:, np.newaxis]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("label", self.labels[best]),
                pb_utils.Tensor("probability", np.take_along_axis(probabilities, best, axis=1)),
                pb_utils.Tensor("probabilities", probabilities),
            ]
        )


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities of logits, over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))  # the largest power is 1: nothing overflows
    return powers / powers.sum(axis=-1, keepdims=True)
