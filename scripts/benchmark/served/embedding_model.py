"""Vectors out of a table in a file that is mapped, not read: it may be larger than the machine's memory.

Only the pages that are asked for are ever read, and all instances share them.
"""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`ids` -> `vectors`, the rows of the table with these numbers."""

    def initialize(self, args: dict[str, str]) -> None:
        """Map the table."""
        self.table = np.load(Path(__file__).with_name("table.npy"), mmap_mode="r")

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer each request by itself."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        ids = pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()
        wrong = ids[(ids < 0) | (ids >= len(self.table))]
        if wrong.size:
            text = f"id {wrong[0]} is not in the table, which has {len(self.table)} rows"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("vectors", self.table[ids])])
