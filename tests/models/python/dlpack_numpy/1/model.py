import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """add_sub on arrays that came, and go, by DLPack."""

    def execute(self, requests):
        responses = []
        for request in requests:
            left = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT0"))
            right = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT1"))
            out_tensor_0 = pb_utils.Tensor.from_dlpack("OUTPUT0", left + right)
            out_tensor_1 = pb_utils.Tensor.from_dlpack("OUTPUT1", left - right)
            responses.append(pb_utils.InferenceResponse(output_tensors=[out_tensor_0, out_tensor_1]))
        return responses
