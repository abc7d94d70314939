import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Logs at every level, and a warning at most once an hour."""

    def initialize(self, args):
        self.count = 0
        self.next_warning = 0.0
        pb_utils.Logger.log_info(f"{args['model_name']} is initialized")

    def execute(self, requests):
        logger = pb_utils.Logger
        responses = []
        for request in requests:
            self.count += 1
            message = pb_utils.get_input_tensor_by_name(request, "MESSAGE").as_numpy()[0].decode()
            logger.log(f"plain {message}")
            logger.log(f"specific {message}", logger.ERROR)
            logger.log_info(f"info {message}")
            logger.log_verbose(f"verbose {message}")
            if time.monotonic() >= self.next_warning:
                self.next_warning = time.monotonic() + 3600
                logger.log_warn(f"warning {message}")
            output = pb_utils.Tensor("COUNT", np.array([self.count], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
