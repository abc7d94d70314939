import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds up what a decoupled model answers."""

    def execute(self, requests):
        responses = []
        for request in requests:
            input_tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            infer_request = pb_utils.InferenceRequest(
                model_name="square", inputs=[input_tensor], requested_output_names=["OUT"]
            )
            infer_responses = infer_request.exec(decoupled=True)

            response_sum = count = 0
            for infer_response in infer_responses:
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())

                # The last response may be empty: it only says that there are no more.
                if len(infer_response.output_tensors()) > 0:
                    output0 = pb_utils.get_output_tensor_by_name(infer_response, "OUT")
                    response_sum += output0.as_numpy()
                    count += 1

            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("SUM", np.array(response_sum, dtype=np.int32).reshape(1)),
                        pb_utils.Tensor("COUNT", np.array([count], dtype=np.int32)),
                    ]
                )
            )
        return responses
