import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Computes what was asked for. MEAN it always gives: what nobody requested does not reach the client."""

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
            requested = request.requested_output_names()

            tensors = [pb_utils.Tensor("MEAN", values.mean(keepdims=True))]
            if "EXTREMES" in requested:
                tensors.append(pb_utils.Tensor("EXTREMES", np.array([values.min(), values.max()])))
            if "SORTED" in requested:
                tensors.append(pb_utils.Tensor("SORTED", np.sort(values)[::-1]))  # not contiguous
            names = np.array([tensor.name() for tensor in tensors], dtype=np.object_)
            tensors.append(pb_utils.Tensor("COMPUTED", names))
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
