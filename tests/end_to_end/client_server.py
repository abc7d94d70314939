"""What the tests of `shoal.Client` share: a server with its socket at a known place, requests to it."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Client, errors
from tests.end_to_end.server import SAMPLES, Server, only, serving

MODELS = only("simple", "simple_string", "mlp", "repeat", "echo", "echo_bf16", "asked", "steady")
ECHO = """
backend: "identity" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
#: A model that says what it was asked beside its input.
ASKED = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }
"""
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
#: One that takes 20 ms for each request, and heeds timeouts over HTTP, too, which has no deadlines.
STEADY = """
backend: "identity" max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "execute_delay_ms" value: { string_value: "20" } }
dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true } }
"""
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)
BOTH = {"INPUT0": A, "INPUT1": B}


@contextmanager
def client_server(path: str, directory: Path) -> Iterator[Server]:
    """A server with its socket at `path`; `directory` takes a repository."""
    configs = {"echo": ECHO, "echo_bf16": ECHO.replace("FP32", "BF16"), "asked": ASKED, "steady": STEADY}
    for name, config in configs.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
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


def repeat(*values: int, delay_ms: int = 0, wait_ms: int = 0) -> dict[str, Any]:
    """A request to the decoupled model."""
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.full(len(values), delay_ms, np.uint32),
        "WAIT": np.array([wait_ms], np.uint32),
    }


def refused_while_busy(asker: Client, client: Client) -> None:
    """The asker's timeout is known to the server, which has more to do than can be done in that time."""
    one = {"INPUT0": [[1]]}
    for _ in range(5):  # after which the server knows how long one takes
        asker.infer("steady", one, timeout=60)
    with ThreadPoolExecutor(12) as pool:
        busy = [pool.submit(client.infer, "steady", one) for _ in range(12)]
        while not any(each.done() for each in busy):  # so that all but the first few are queued
            with suppress(TimeoutError):
                busy[0].result(0.01)
        with pytest.raises(errors.UnavailableError, match="'steady' is overloaded: it needs about"):
            asker.infer("steady", one, timeout=0.08)
        assert [each.result()["OUTPUT0"].tolist() for each in busy] == [[[1]]] * 12
