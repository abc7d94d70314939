"""What the tests of `shoal.Client` share: a server with its socket at a known place, requests to it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Client, errors
from shoal.batcher.scheduling.admission import WINDOW
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, only, samples, serving, title

MODELS = only("simple", "simple_string", "mlp", "repeat", "echo", "echo_twice", "echo_bf16", "asked", "steady")
ECHO = config_text("identity", "INPUT0 FP32 -1", "OUTPUT0 FP32 -1", rows=4)
#: An ensemble of it: what its clients send is read by the batcher, too.
ECHO_TWICE = """
platform: "ensemble" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step [
  { model_name: "echo" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "once" } },
  { model_name: "echo" model_version: -1
    input_map { key: "INPUT0" value: "once" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""
#: A model that says what it was asked beside its input.
ASKED = config_text("python", "INPUT0 INT32 1", "OUTPUT0 STRING 1")
ASKED_PY = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(each) for each in requests]

    def _answer(self, request):
        parameters = sorted(json.loads(request.parameters()).items())
        said = f"{request.request_id()} {request.correlation_id()} {request.flags()} {parameters}"
        output = pb_utils.Tensor("OUTPUT0", np.array([said.encode()], object))
        return pb_utils.InferenceResponse([output], parameters={"number": 5, "word": "x", "truth": True})
"""
#: One that takes 20 ms for each execution, and heeds timeouts over HTTP, too, which has no deadlines. Where only single
#: rows are known, a request of so many is thought to take 4 s.
STEADY_ROWS = 200
STEADY = f"""
backend: "identity" max_batch_size: {STEADY_ROWS}
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "20" }} }}
dynamic_batching {{ default_queue_policy {{ default_timeout_microseconds: 3600000000 allow_timeout_override: true }} }}
"""
PENDING = 'nv_inference_pending_request_count{model="steady",version="1"}'
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)
BOTH = {"INPUT0": A, "INPUT1": B}


@contextmanager
def client_server(path: str, directory: Path) -> Iterator[Server]:
    """A server with its socket at `path`; `directory` takes a repository."""
    configs = {
        "echo": ECHO,
        "echo_twice": ECHO_TWICE,
        "echo_bf16": ECHO.replace("FP32", "BF16"),
        "asked": ASKED,
        "steady": STEADY,
    }
    for name, config in configs.items():
        add_model(directory, name, config)
    (directory / "asked" / "1" / "model.py").write_text(ASKED_PY)
    flags = f"--client-socket={path}", "--client-slab-mib=4", "--client-count=40", "--shm-oversize-mib=64"
    with serving([SAMPLES, directory], *MODELS, *flags, "--grpc-port=0") as server:
        yield server
        if server.process.poll() is None:  # else a test has killed it
            assert server.stop() == 0
            assert not os.path.exists(path)


def sums(client: Client) -> bool:
    """Whether the client gets a right answer."""
    return bool((client.infer("simple", BOTH)["OUTPUT0"] == A + B).all())


def ask_until(client: Client, condition: Callable[[], bool]) -> None:
    """Ask until it holds: what has come of earlier requests is looked at with the next one."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert sums(client)
        assert time.monotonic() < end, "it never came"


def repeat(*values: int, delay_ms: int = 0, wait_ms: int = 0) -> dict[str, Any]:
    """A request to the decoupled model."""
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.full(len(values), delay_ms, np.uint32),
        "WAIT": np.array([wait_ms], np.uint32),
    }


def refused_while_busy(asker: Client, client: Client, server: Server) -> None:
    """The asker's timeout is known to the server, which has more to do than can be done in that time."""
    one, many = {"INPUT0": [[1]]}, {"INPUT0": [[1]] * STEADY_ROWS}
    for _ in range(WINDOW):  # after which the server knows how long a row takes
        asker.infer("steady", one, timeout=DEADLINE_S)
    (worker,) = [pid for pid in server.children if "worker steady_0_0 " in title(pid)]
    with ThreadPoolExecutor(12) as pool:
        os.kill(worker, signal.SIGSTOP)  # what is queued stays so, however long it takes to ask
        try:
            busy = [pool.submit(client.infer, "steady", many) for _ in range(12)]
            ask_until(client, lambda: samples(server.metrics_port)[PENDING] == 11)
            with pytest.raises(errors.UnavailableError, match="'steady' is overloaded: it needs about"):
                asker.infer("steady", one, timeout=30)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert [each.result()["OUTPUT0"].tolist() for each in busy] == [[[1]] * STEADY_ROWS] * 12
