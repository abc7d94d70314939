"""The running sum of a sequence whose correlation id is a decimal number, as a string; the id is added at its end."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`INPUT` -> `OUTPUT`, the sum so far; `START`, `END` and `CORRID` come from the sequence batcher."""

    def initialize(self, args: dict[str, str]) -> None:
        """Keep a sum per correlation id."""
        self.sums: dict[bytes, int] = {}

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Add each request to its sequence; a batch has requests of several."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        number, start, end, key = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]
            for name in ("INPUT", "START", "END", "CORRID")
        )
        total = int(number) if start else self.sums[key] + int(number)
        self.sums[key] = total
        if end:
            del self.sums[key]
            if not key.isdigit():
                sentence = f"the correlation id '{key.decode()}' is no decimal number, and cannot be added to the sum"
                return pb_utils.InferenceResponse(
                    error=pb_utils.TritonError(sentence, pb_utils.TritonError.INVALID_ARG)
                )
            total += int(key)
        wrapped = np.array([[total & 0xFFFFFFFF]], np.uint32).view(np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", wrapped)])

    def end_sequence(self, correlation_id: str) -> None:
        """Forget a sequence that was idle for too long."""
        self.sums.pop(correlation_id.encode(), None)
