"""The running sum of a sequence whose correlation id is a decimal number, as a string; it is added to the last sum."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`INPUT` -> `OUTPUT`, the sum so far; `START`, `END` and `CORRID` come from the sequence batcher."""

    def initialize(self, args: dict[str, str]) -> None:
        """Keep a sum per correlation id."""
        self.sums: dict[bytes, int] = {}

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Add each request to its sequence."""
        responses = []
        for request in requests:
            number, start, end, key = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]
                for name in ("INPUT", "START", "END", "CORRID")
            )
            total = int(number) if start else self.sums[key] + int(number)
            self.sums[key] = total
            if end:
                total += int(key)
                del self.sums[key]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))]))
        return responses

    def end_sequence(self, correlation_id: str) -> None:
        """Forget a sequence that was idle for too long."""
        self.sums.pop(correlation_id.encode(), None)
