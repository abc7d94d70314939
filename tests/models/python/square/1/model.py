import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """For the number n, sends n responses, each of them n."""

    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(model_config):
            raise pb_utils.TritonModelException(f"the model `{args['model_name']}` needs the decoupled policy")
        output_config = pb_utils.get_output_config_by_name(model_config, "OUT")
        self.output_dtype = pb_utils.triton_string_to_numpy(output_config["data_type"])

    def execute(self, requests):
        for request in requests:
            in_value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
            response_sender = request.get_response_sender()
            if in_value < 0:
                # One response before the error, so that the error comes in the middle of a stream.
                response_sender.send(self.response(in_value))
                error = pb_utils.TritonError("cannot send fewer than no responses", pb_utils.TritonError.INVALID_ARG)
                response_sender.send(
                    pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            for _ in range(in_value):
                response_sender.send(self.response(in_value))
            response_sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def response(self, value):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], self.output_dtype))])
