"""The models in Triton's Python backend: identity, or the mlp, run once for all requests of a batch."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from bench.served.session import open_session
from bench.workloads import MLP_512, MODELS


class TritonPythonModel:
    """The class that the Python backend looks for in model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session of the mlp."""
        self._model = MODELS[args["model_name"]]
        self._session = open_session() if self._model is MLP_512 else None

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests of a batch."""
        inputs = [
            pb_utils.get_input_tensor_by_name(request, self._model.input_names[0]).as_numpy() for request in requests
        ]
        outputs = inputs
        if self._session is not None:
            rows = self._session.run(None, {self._model.input_names[0]: np.concatenate(inputs)})[0]
            outputs = np.split(rows, np.cumsum([len(each) for each in inputs])[:-1])
        name = self._model.output_names[0]
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, output)]) for output in outputs]
