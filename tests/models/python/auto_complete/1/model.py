import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """There is no config.pbtxt: the model says what it takes and gives."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        inputs = [
            {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4], "optional": True},
        ]
        outputs = [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]}]

        # What a configuration says already stays as it is.
        config = auto_complete_model_config.as_dict()
        input_names = [tensor["name"] for tensor in config["input"]]
        output_names = [tensor["name"] for tensor in config["output"]]
        for tensor in inputs:
            if tensor["name"] not in input_names:
                auto_complete_model_config.add_input(tensor)
        for tensor in outputs:
            if tensor["name"] not in output_names:
                auto_complete_model_config.add_output(tensor)

        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])
        assert self.model_config["max_batch_size"] == 4

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            addend = np.ones_like(in_0) if in_1 is None else in_1.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", in_0 + addend)]))
        return responses
