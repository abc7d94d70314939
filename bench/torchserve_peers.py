"""TorchServe and Shoal's command `torchserve`, each with the same archive and the same config.properties.

One listener has the inference and the management API, one worker runs the handler, and all else is each server's
default.
"""

import json
import os
import subprocess
import zipfile
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.errors import BenchmarkError
from bench.peers import ROOT, SHOAL_PYTHON, Peer, shoal_build
from bench.server import Server, ask, free_ports
from bench.table import OURS
from bench.workloads import BenchModel, Request

#: The environment that scripts/bench makes for TorchServe.
TORCHSERVE_PYTHON = ROOT / ".venv-torchserve" / "bin" / "python"

#: The handlers by model: functions that import nothing.
_HANDLERS = {
    "noop": """\
def handle(data, context):
    return [row["body"] for row in data or ()]
""",
    "doubled": """\
def handle(data, context):
    return [[2 * number for number in row["body"]] for row in data or ()]
""",
}

_PROPERTIES = """\
inference_address=http://127.0.0.1:{port}
management_address=http://127.0.0.1:{port}
metrics_address=http://127.0.0.1:{metrics_port}
grpc_inference_port={grpc_inference_port}
grpc_management_port={grpc_management_port}
initial_worker_port={worker_port}
default_workers_per_model=1
"""


def write_archive(store: Path, model: BenchModel) -> Path:
    """A `.mar` of a model's handler in a model store, as torch-model-archiver packs it; returns its path."""
    store.mkdir(parents=True, exist_ok=True)
    path = store / f"{model.name}.mar"
    manifest = {
        "createdOn": "29/11/2026 00:00:00",
        "runtime": "python",
        "model": {"modelName": model.name, "handler": "handler.py", "modelVersion": "1.0"},
        "archiverVersion": "0.12.0",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("handler.py", _HANDLERS[model.name])
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return path


def launch(folder: Path, model: BenchModel, _encoding: str, *, python: Path) -> Server:
    """A server that is not started yet: the command `torchserve` of the environment of this interpreter."""
    command = python.with_name("torchserve")
    if not command.exists():
        raise BenchmarkError(f"'{command}' is missing; scripts/bench --peer torchserve installs TorchServe")
    own = folder / f"{python.parts[-3].lstrip('.')}-{model.name}"
    archive = write_archive(own / "store", model)
    port, metrics_port, grpc_inference_port, grpc_management_port, worker_port = free_ports(5)
    properties = own / "config.properties"
    properties.write_text(
        _PROPERTIES.format(
            port=port,
            metrics_port=metrics_port,
            grpc_inference_port=grpc_inference_port,
            grpc_management_port=grpc_management_port,
            worker_port=worker_port,
        )
    )
    temporary = own / "tmp"  # for the pid file, which would be one for all servers of this machine
    temporary.mkdir(exist_ok=True)
    words = [str(command), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    words += ["--ts-config", str(properties), "--model-store", str(archive.parent), "--models", archive.name]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "LOG_LOCATION": str(own / "logs"),
        "METRICS_LOCATION": str(own / "logs"),
        "TMPDIR": str(temporary),
    }
    return Server(words, environment, port, own / "server.log", folder=own)


def request(model: BenchModel, encoding: str) -> Request:
    """A prediction: the floats as they lie in memory, or as a JSON list."""
    path = f"/predictions/{model.name}"
    if encoding == "json":
        return Request(path, {"Content-Type": "application/json"}, json.dumps(model.values.tolist()).encode())
    return Request(path, {"Content-Type": "application/octet-stream"}, model.values.tobytes())


def answer(_headers: Mapping[str, str], body: bytes) -> "array[float]":
    """The numbers of an answer: a JSON list, or the bytes as they lie in memory. TorchServe names no content type."""
    return array("f", json.loads(body) if body.startswith(b"[\n") else body)


def worker_pid(port: int, model: BenchModel) -> int:
    """The pid of a model's only worker, as the management API tells it. Raises BenchmarkError where it has none."""
    status, _, body = ask(port, Request(f"/models/{model.name}", {}, b""), "GET")
    try:
        ((worker,),) = [each["workers"] for each in json.loads(body)]
        pid = int(worker["pid"])
    except (KeyError, TypeError, ValueError) as error:
        raise BenchmarkError(f"status {status}, no description of one worker: {body[:200]!r}") from error
    if pid <= 0:
        raise BenchmarkError("the worker is not running")
    return pid


def _torchserve_version(_port: int) -> str:
    program = (
        "from importlib.metadata import version as v\n"
        "print(', '.join(f'{name} {v(name)}' for name in ('torchserve', 'torch')))"
    )
    packages = subprocess.run([TORCHSERVE_PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return f"{packages.strip()}, {java}"


SHOAL = Peer(
    OURS, "Shoal", "Shoal", partial(launch, python=SHOAL_PYTHON), request, answer,
    lambda _port: shoal_build(SHOAL_PYTHON), "Its command `torchserve`.",
)  # fmt: skip
TORCHSERVE = Peer(
    "torchserve", "TorchServe", "TorchServe", partial(launch, python=TORCHSERVE_PYTHON), request, answer,
    _torchserve_version, "The release, with the defaults of its Java virtual machine.",
)  # fmt: skip
