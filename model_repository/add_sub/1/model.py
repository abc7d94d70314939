"""Triton's first Python example: the sum and the difference of two vectors."""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`INPUT0`, `INPUT1` -> `OUTPUT0`, their sum, and `OUTPUT1`, their difference."""

    def initialize(self, args: dict[str, str]) -> None:
        """Learn from the configuration what datatypes the outputs have."""
        config = json.loads(args["model_config"])
        self.sum_type, self.difference_type = (
            pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, name)["data_type"])
            for name in ("OUTPUT0", "OUTPUT1")
        )

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """One response per request, in their order."""
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            total = pb_utils.Tensor("OUTPUT0", (left + right).astype(self.sum_type, copy=False))
            difference = pb_utils.Tensor("OUTPUT1", (left - right).astype(self.difference_type, copy=False))
            responses.append(pb_utils.InferenceResponse([total, difference]))
        return responses
