"""A server with TorchServe's listeners, and a model that takes what they send: it does what its request's body says."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.end_to_end.repositories import config_text
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end

FLAGS = (
    "--allow-torchserve=true", "--torchserve-inference-port=0", "--torchserve-management-port=0",
    "--torchserve-metrics-port=0", "--allow-torchserve-grpc=false",
)  # fmt: skip
CONFIG = config_text(
    "python", "data STRING 1", "prediction STRING 1", rows=4, count=1, ts_version="1.0", ts_model_url="echo.mar"
)
#: `told` gives back what the request's parameter says, and its body, `as JSON` sets the response's parameter; any other
#: word is given back itself.
MODEL = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

STATUS = {"status": 418, "phrase": "short and stout", "headers": {"content-type": "text/plain", "X-A": "b"}}

def answer(request):
    body = pb_utils.get_input_tensor_by_name(request, "data").as_numpy().reshape(-1)[0]
    told = json.loads(json.loads(request.parameters())["ts"])
    more = {}
    if body == b"kill":
        os.kill(os.getpid(), 9)
    if body == b"exit":
        os._exit(3)
    if body.startswith(b"ts:"):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(body.decode()))
    if body == b"teapot":
        more = {"parameters": {"ts": json.dumps(STATUS)}}
    if body.startswith(b"as "):
        more = {"parameters": {"ts": body[3:].decode()}}
    if b"told" in body:
        body = json.dumps({**told, "body": body.decode()}).encode()
    return pb_utils.InferenceResponse([pb_utils.Tensor("prediction", np.array([[body]], dtype=object))], **more)

class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]
"""


class Reply(NamedTuple):
    """A response to a request."""

    status: int
    phrase: str
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be indented JSON with a newline at its end."""
        value = json.loads(self.body)
        assert self.body == (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
        return value


class TorchServe(NamedTuple):
    """The listeners of one server."""

    server: Server
    inference_port: int
    management_port: int
    metrics_port: int

    @property
    def grpc_inference_port(self) -> int:
        """The port of the inference API over gRPC, which only the command's servers have."""
        return self.server.port_of("TorchServe gRPC Inference")

    @property
    def grpc_management_port(self) -> int:
        """The port of the management API over gRPC."""
        return self.server.port_of("TorchServe gRPC Management")

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask the inference API, on a connection of its own."""
        return ask(self.inference_port, method, path, body, headers)

    def manage(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Ask the management API."""
        return ask(self.management_port, method, path, body, headers)


def ask(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One request, and its response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request(method, path, body, dict(headers or {}))
    response = connection.getresponse()
    reply = Reply(response.status, response.reason, response.headers, response.read())
    connection.close()
    return reply


def write_echo(directory: Path, more: str = "") -> None:
    """A model that follows the contract of TorchServe's backend."""
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG + more)
    (directory / "1" / "model.py").write_text(MODEL)


@contextmanager
def torchserve_command(directory: Path, store: Path, properties: str, *flags: str) -> Iterator[TorchServe]:
    """A server as the command `torchserve` starts it, on free ports; its files lie in `directory`."""
    # Two spellings: equal addresses of inference and management would mean one listener, which has no tokens.
    hosts = {"inference": "127.0.0.1", "management": "localhost", "metrics": "127.0.0.1"}
    listeners = "".join(f"{name}_address=http://{host}:0\n" for name, host in hosts.items())
    listeners += "grpc_inference_port=0\ngrpc_management_port=0\n"
    (directory / "config.properties").write_text(listeners + properties)
    argv = "--ncs", f"--model-store={store}", f"--ts-config={directory / 'config.properties'}", *flags
    with started_command(directory, *argv) as server:
        names = ("Inference", "Management", "Metrics")
        yield TorchServe(server, *(server.port_of(f"TorchServe {name}") for name in names))


@contextmanager
def started_command(directory: Path, *flags: str, **environment: str) -> Iterator[Server]:
    """A server that the command `torchserve` has started in the foreground, in a directory; ended afterwards."""
    program = "from shoal.cli import torchserve; raise SystemExit(torchserve())"
    command = [sys.executable, "-c", program, "--start", "--foreground", *flags]
    variables = {**os.environ, "TMPDIR": str(directory), "LOG_LOCATION": str(directory / "logs"), **environment}
    process = subprocess.Popen(command, env=variables, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with Server(process) as server:
        yield server
        assert server.stop() == 0, server.log.decode()


@contextmanager
def torchserve(repository: Path, *flags: str) -> Iterator[TorchServe]:
    """A server with TorchServe's listeners."""
    with serving_to_the_end(repository, *FLAGS, *flags) as server:
        names = ("Inference", "Management", "Metrics")
        yield TorchServe(server, *(server.port_of(f"TorchServe {name}") for name in names))
