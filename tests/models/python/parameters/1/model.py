import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives back the parameters that came with the request."""

    def execute(self, requests):
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters())
            keys = pb_utils.Tensor("KEYS", np.array(sorted(parameters), dtype=np.object_))
            request_id = pb_utils.Tensor("REQUEST_ID", np.array([request.request_id()], dtype=np.object_))
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[keys, request_id],
                    parameters={**parameters, "correlation_id": request.correlation_id(), "handled": True},
                )
            )
        return responses
