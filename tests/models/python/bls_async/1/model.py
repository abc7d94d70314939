import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks two questions at a time: the sum of one answer, the difference of the other."""

    async def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")

            infer_response_awaits = []
            for output_name in ["OUTPUT0", "OUTPUT1"]:
                infer_request = pb_utils.InferenceRequest(
                    model_name="add_sub", requested_output_names=[output_name], inputs=[in_0, in_1]
                )
                infer_response_awaits.append(infer_request.async_exec())

            infer_responses = await asyncio.gather(*infer_response_awaits)

            for infer_response in infer_responses:
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())

            sum_tensor = pb_utils.get_output_tensor_by_name(infer_responses[0], "OUTPUT0")
            difference_tensor = pb_utils.get_output_tensor_by_name(infer_responses[1], "OUTPUT1")
            responses.append(pb_utils.InferenceResponse(output_tensors=[sum_tensor, difference_tensor]))
        return responses
