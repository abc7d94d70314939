"""Vectors from a mapped table, as a user writes it for Triton's Python backend."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model: `ids` -> `vectors`, the rows of the table with these numbers."""

    def initialize(self, args: dict[str, str]) -> None:
        """Map the table into memory."""
        self.table = np.load(Path(__file__).with_name("table.npy"), mmap_mode="r")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        ids: Any = pb_utils.get_input_tensor_by_name(request, "ids")
        ids = ids.as_numpy()
        wrong = ids[(ids < 0) | (ids >= len(self.table))]
        if wrong.size:
            text = f"id {wrong[0]} is not in the table, which has {len(self.table)} rows"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("vectors", self.table[ids])])
