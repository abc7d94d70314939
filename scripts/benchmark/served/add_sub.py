"""Triton's add_sub example as its users write it: the file that Shoal and Triton serve, both the same."""

import json
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sum and difference of two tensors."""

    def initialize(self, args: dict[str, str]) -> None:
        """Look up the outputs' types in the configuration."""
        model_config = json.loads(args["model_config"])
        output0 = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
        output1 = pb_utils.get_output_config_by_name(model_config, "OUTPUT1")
        self.output0_dtype = pb_utils.triton_string_to_numpy(output0["data_type"])
        self.output1_dtype = pb_utils.triton_string_to_numpy(output1["data_type"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            out_0, out_1 = in_0 + in_1, in_0 - in_1
            out_tensor_0 = pb_utils.Tensor("OUTPUT0", out_0.astype(self.output0_dtype))
            out_tensor_1 = pb_utils.Tensor("OUTPUT1", out_1.astype(self.output1_dtype))
            responses.append(pb_utils.InferenceResponse(output_tensors=[out_tensor_0, out_tensor_1]))
        return responses
