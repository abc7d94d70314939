"""Models that keep response senders for ever: a request without a client ends by the execution limit, or at a stop."""

import queue
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as client

from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, imbalances, only, serving_to_the_end

CODE = """
import triton_python_backend_utils as pb_utils

KEPT = []


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            KEPT.append(request.get_response_sender())
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            KEPT[-1].send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_a_request_whose_client_has_gone_ends_by_the_limit_and_without_one_at_the_stop(tmp_path: Path) -> None:
    for name, limit_ms in (("limited", 200), ("unlimited", 0)):
        text = config_text("python", "IN INT32 -1", "OUT INT32 -1", DECOUPLED, count=1, execution_timeout_ms=limit_ms)
        add_model(tmp_path, name, text, CODE)
    tensor = client.InferInput("IN", [3], "INT32")
    tensor.set_data_from_numpy(np.arange(3, dtype=np.int32))
    with serving_to_the_end(tmp_path, "--grpc-port=0", *only("limited", "unlimited")) as server:
        for name in ("limited", "unlimited"):
            answers: Any = queue.SimpleQueue()
            with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as reader:
                reader.start_stream(lambda result, error, answers=answers: answers.put(error or result))
                reader.async_stream_infer(name, [tensor])
                assert answers.get(timeout=DEADLINE_S).as_numpy("OUT").tolist() == [0, 1, 2]
                reader.stop_stream(cancel_requests=True)
            if name == "limited":
                server.ledger_once(lambda ledger: not imbalances(ledger))
