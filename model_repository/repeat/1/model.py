"""Many answers to one request: each element of the input comes back by itself, after its delay.

`execute` returns at once; a thread per request sends the responses. A client that goes away stops its thread.
"""

from __future__ import annotations  # Triton has no pb_utils.InferenceRequest while it completes configurations

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`IN`, `DELAY` (ms before each response), `WAIT` (ms before execute returns) -> `OUT`, `IDX` per element."""

    def initialize(self, args: dict[str, str]) -> None:
        """Count the threads, to wait for them at the end."""
        self.open = 0
        self.changed = threading.Condition()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Start the answering of each request; nothing is returned by a decoupled model."""
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy()
            delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy().copy()
            wait_ms = pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()[0]
            sender = request.get_response_sender()
            if len(numbers) != len(delays):
                error = pb_utils.TritonError("IN and DELAY must have equal lengths", pb_utils.TritonError.INVALID_ARG)
                sender.send(
                    pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            with self.changed:
                self.open += 1
            threading.Thread(target=self._answer, args=(sender, numbers, delays), daemon=True).start()
            time.sleep(wait_ms / 1000)

    def _answer(self, sender: pb_utils.InferenceResponseSender, numbers: np.ndarray, delays: np.ndarray) -> None:
        try:
            for index, (number, delay_ms) in enumerate(zip(numbers, delays, strict=True)):
                time.sleep(delay_ms / 1000)
                if sender.is_cancelled():
                    break
                out = pb_utils.Tensor("OUT", np.array([number], np.int32))
                idx = pb_utils.Tensor("IDX", np.array([index], np.uint32))
                sender.send(pb_utils.InferenceResponse([out, idx]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        finally:
            with self.changed:
                self.open -= 1
                self.changed.notify()

    def finalize(self) -> None:
        """Wait until every request is answered."""
        with self.changed:
            self.changed.wait_for(lambda: not self.open)
