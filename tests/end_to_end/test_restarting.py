"""A model whose only instance is being started again: requests wait for it, whichever way they came."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from shoal import Client
from tests.end_to_end.gate import Gate
from tests.end_to_end.server import DEADLINE_S, Server, descendants, serving, title
from tests.end_to_end.test_batching import wait_for_pending

CONFIG = """
backend: "python"
input { name: "A" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "B" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
#: Up once its gate lets it pass; asked itself, it answers, and with 1 it asks the model `gated` in its place.
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        open(f"{args['model_repository']}/gate").close()

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "A")) for each in requests]

    def answer(self, tensor):
        if tensor.as_numpy()[0] == 1:
            inputs = [pb_utils.Tensor("A", tensor.as_numpy() + 1)]
            asked = pb_utils.InferenceRequest(model_name="gated", requested_output_names=["B"], inputs=inputs)
            answered = asked.exec()
            assert not answered.has_error(), answered.error().message()
            return pb_utils.InferenceResponse(answered.output_tensors())
        return pb_utils.InferenceResponse([pb_utils.Tensor("B", tensor.as_numpy())])
"""
CALL, ANSWER = 1, 2


@pytest.fixture
def gates(tmp_path: Path) -> dict[str, Gate]:
    """The two models, and where each stands still before it is up."""
    for name in ("gated", "caller"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(CONFIG)
        (tmp_path / name / "1" / "model.py").write_text(MODEL)
    return {name: Gate(tmp_path / name / "gate") for name in ("gated", "caller")}


@pytest.fixture
def server(tmp_path: Path, gates: dict[str, Gate]) -> Iterator[Server]:
    flags = "--grpc-port=0", f"--client-socket={tmp_path}/socket"
    with gates["caller"].opened(), gates["gated"].opened(), serving(tmp_path, *flags) as server:
        yield server
        assert server.stop() == 0, server.log.decode()


def ask_http(server: Server, model: str = "gated", word: int = ANSWER) -> int:
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        tensor = tritonclient.http.InferInput("A", [1], "INT32")
        tensor.set_data_from_numpy(np.full(1, word, np.int32))
        values = client.infer(model, [tensor]).as_numpy("B")
    assert values is not None
    return int(values[0])


def ask_grpc(server: Server) -> int:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        tensor = tritonclient.grpc.InferInput("A", [1], "INT32")
        tensor.set_data_from_numpy(np.full(1, ANSWER, np.int32))
        found = client.infer("gated", [tensor], client_timeout=DEADLINE_S)
    assert found is not None
    values = found.as_numpy("B")
    assert values is not None
    return int(values[0])


def test_requests_wait_for_it(server: Server, gates: dict[str, Gate], tmp_path: Path) -> None:
    def ask_client() -> int:
        return int(client.infer("gated", {"A": np.full(1, ANSWER, np.int32)})["B"][0])

    ways: list[Callable[[], int]] = [
        lambda: ask_http(server), lambda: ask_grpc(server), ask_client, lambda: ask_http(server, "caller", CALL),
    ]  # fmt: skip
    with Client(f"{tmp_path}/socket") as client, ThreadPoolExecutor(len(ways)) as pool:
        assert [ask() for ask in ways] == [ANSWER] * len(ways)  # client and caller have joined
        (worker,) = [pid for pid in descendants(server.process.pid) if title(pid).startswith("shoal worker gated_0_0")]
        with gates["gated"].closed():
            start = len(server.log)
            os.kill(worker, signal.SIGKILL)
            assert server.read_log(b"instance 'gated_0_0' (pid", start=start)
            asked = [pool.submit(ask) for ask in ways]
            wait_for_pending(server, "gated", len(ways))
        assert [each.result(DEADLINE_S) for each in asked] == [ANSWER] * len(ways)
