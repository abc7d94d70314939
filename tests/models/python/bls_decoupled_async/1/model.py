import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Two streams of a decoupled model, started together and read one after the other."""

    async def execute(self, requests):
        responses = []
        for request in requests:
            infer_requests = [
                pb_utils.InferenceRequest(
                    model_name="square",
                    inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
                    requested_output_names=["OUT"],
                )
                for _ in range(2)
            ]
            streams = await asyncio.gather(*(each.async_exec(decoupled=True) for each in infer_requests))

            total = np.zeros(1, dtype=np.int32)
            for infer_responses in streams:
                for infer_response in infer_responses:
                    if infer_response.has_error():
                        raise pb_utils.TritonModelException(infer_response.error().message())
                    for tensor in infer_response.output_tensors():
                        total += tensor.as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("SUM", total)]))
        return responses
