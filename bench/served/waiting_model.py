"""A model that takes 2 ms, whatever it is asked: nearly all of a request's time is the model's."""

import time
from typing import Any

import triton_python_backend_utils as pb_utils

WAIT_S = 0.002


class TritonPythonModel:
    """The model: `OUTPUT0` is `INPUT0`."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request after WAIT_S of its own."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        time.sleep(WAIT_S)
        given: Any = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given.as_numpy())])
