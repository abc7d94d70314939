import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Works for a while on each request, and stops where nobody waits for the answer any more."""

    def execute(self, requests):
        logger = pb_utils.Logger
        responses = []
        for request in requests:
            max_wait_s = pb_utils.get_input_tensor_by_name(request, "MAX_WAIT_S").as_numpy()[0]
            logger.log_info(f"working on '{request.request_id()}'")
            start = time.monotonic()
            while (waited_s := time.monotonic() - start) < max_wait_s:
                if request.is_cancelled():
                    logger.log_info(f"'{request.request_id()}' was cancelled")
                    error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                    responses.append(pb_utils.InferenceResponse(error=error))
                    break
                time.sleep(0.01)  # its work, which ends early where a client has gone
            else:
                output = pb_utils.Tensor("WAITED_S", np.array([waited_s], dtype=np.float32))
                responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
