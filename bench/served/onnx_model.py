"""An ONNX model in Triton's Python backend, the only one in the wheel: one input, one output, one thread."""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The class that the Python backend looks for in model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session."""
        config = json.loads(args["model_config"])
        self._input, self._output = config["input"][0]["name"], config["output"][0]["name"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        file = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the model for each request separately."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tensor: Any = pb_utils.get_input_tensor_by_name(request, self._input)
        output = self._session.run([self._output], {self._input: tensor.as_numpy()})[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor(self._output, output)])
