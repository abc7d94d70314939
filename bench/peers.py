"""The servers under comparison: how each is started with one model, and its requests and answers.

Every server has one instance of the model and otherwise its own defaults; differences from these are in `notes`, which
the document prints.
"""

import json
import os
import secrets
import subprocess
import sys
import sysconfig
import urllib.request
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata, util
from pathlib import Path

from bench import repository
from bench.errors import BenchmarkError
from bench.server import Server, free_ports
from bench.workloads import BenchModel, Request, plain_answer, plain_request, v2_answer, v2_request

ROOT = Path(__file__).parents[1]
SHOAL_PYTHON = ROOT / ".venv" / "bin" / "python"
COMPILED_PYTHON = ROOT / ".venv-compiled" / "bin" / "python"  # made by scripts/_compiled
NUM_CPUS = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of the comparison."""

    name: str
    title: str
    short: str  # in the head of a column
    launch: Callable[[Path, BenchModel, str], Server]  # (folder for its files, model, encoding) → not started yet
    request: Callable[[BenchModel, str], Request]
    answer: Callable[[Mapping[str, str], bytes], "array[float]"]
    version: Callable[[int], str]  # port of the running server → its version, as printed
    notes: str
    background: Callable[[int], AbstractContextManager[object]] = nullcontext  # port → the load's background
    runs_python: bool = False  # runs a model.py unchanged

    def can_serve(self, model: BenchModel, encoding: str) -> bool:
        """Whether the peer can serve this model to requests of this encoding. Peers that run a model.py speak Triton's
        protocol."""
        return self.runs_python or not (model.is_python or encoding == "regions")


def _environment(**more: str) -> dict[str, str]:
    """The environment variables of peers: their own packages, and this folder's modules."""
    site_packages = sysconfig.get_path("purelib")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}:{site_packages}", **more}


def _packages(*names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def launch_shoal(
    folder: Path,
    model: BenchModel,
    encoding: str,
    others: Sequence[BenchModel] = (),
    num_instances: int = 1,
    grpc: Sequence[str] | None = None,
    python: Path = SHOAL_PYTHON,
    flags: Sequence[str] = (),
) -> Server:
    """A `shoal serve` that is not started yet, with other models beside the measured one, and more flags.

    The server is measured over HTTP, or over gRPC if `grpc` is a list of flags, which may be empty. `python` is the
    interpreter of the environment with the build that is measured.
    """
    http_port, metrics_port, grpc_port = free_ports(3)
    models = repository.write_for_shoal(folder, model, others, num_instances)
    command = [f"{python.with_name('shoal')}", "serve", f"--model-repository={models}"]
    command += [f"--http-port={http_port}", f"--metrics-port={metrics_port}"]
    command += ["--allow-grpc=false"] if grpc is None else [f"--grpc-port={grpc_port}", *grpc]
    command += ["--allow-client-shm=true"] if encoding == "regions" else []
    command += flags
    return Server(command, os.environ, http_port if grpc is None else grpc_port, folder / "shoal.log")


def shoal_version(_port: int, python: Path = SHOAL_PYTHON) -> str:
    """The versions of Shoal, its interpreter and its packages, from the environment of this interpreter."""
    program = (
        "from importlib.metadata import version as v\n"
        "print(', '.join(f'{name} {v(name)}' for name in ('gunicorn', 'numpy', 'onnxruntime')))"
    )
    packages = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    return f"{shoal_build(python)}, {packages}"


def shoal_build(python: Path) -> str:
    """The output of `shoal --version` in the environment of this interpreter: how interpreter and Shoal were built."""
    command = [f"{python.with_name('shoal')}", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def launch_triton(folder: Path, model: BenchModel, _encoding: str, *, is_grpc: bool = False) -> Server:
    """A real `tritonserver` that is not started yet, to be asked over HTTP or gRPC."""
    return serve_with_triton(folder, repository.write_for_triton(folder, model), is_grpc=is_grpc)


def serve_with_triton(folder: Path, models: Path, *, is_grpc: bool = False) -> Server:
    """A real `tritonserver` with a repository, not started yet. Raises BenchmarkError if Triton is not installed."""
    spec = util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise BenchmarkError("nvidia-pytriton is not installed")
    triton = Path(spec.origin).parent / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.exists():
        raise BenchmarkError(f"nvidia-pytriton has no Python backend for Python {python}")
    # The server looks for the Python stub beside the backend; the wheel has one per version of Python elsewhere.
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True, exist_ok=True)
    for file in (*(triton / "backends" / "python").iterdir(), stub):
        if not (backend / file.name).exists():
            (backend / file.name).symlink_to(file)
    http_port, metrics_port, grpc_port = free_ports(3)
    command = [f"{triton / 'bin' / 'tritonserver'}", f"--model-repository={models}"]
    command += [f"--backend-directory={backend.parent}"]
    command += ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"] if is_grpc else ["--allow-grpc=false"]
    command += ["--http-address=127.0.0.1", f"--http-port={http_port}", f"--metrics-port={metrics_port}"]
    memory_prefix = f"benchmark_{secrets.token_hex(8)}_"
    command += [f"--backend-config=python,shm-region-prefix-name={memory_prefix}"]
    libpython = sysconfig.get_config_var("LIBDIR")
    libraries = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), libpython)))
    environment = _environment(LD_LIBRARY_PATH=libraries)
    port = grpc_port if is_grpc else http_port
    return Server(command, environment, port, folder / "triton.log", memory_prefix)


def _triton_version(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=10) as answer:
        return triton_title(json.load(answer)["version"])


def triton_title(version: str) -> str:
    """The version of the real tritonserver and of its packages, in words."""
    return f"tritonserver {version} ({_packages('nvidia-pytriton', 'numpy', 'onnxruntime')})"


def _launch_mosec(folder: Path, model: BenchModel, encoding: str) -> Server:
    (port,) = free_ports(1)
    command = [sys.executable, f"{Path(__file__).parent / 'served' / 'mosec_server.py'}"]
    command += ["--address=127.0.0.1", f"--port={port}", f"--path={folder / 'mosec'}", "--log-level=warning"]
    return Server(command, _environment(MODEL=model.name, ENCODING=encoding), port, folder / "mosec.log")


def _launch_flask(folder: Path, model: BenchModel, _encoding: str) -> Server:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "gunicorn", f"--bind=127.0.0.1:{port}", f"--workers={NUM_CPUS}", "--threads=8"]
    command += ["--keep-alive=60", "bench.served.flask_app:create_app()"]
    return Server(command, _environment(MODEL=model.name), port, folder / "flask.log")


def compiled_peer(pure: Peer, launch: Callable[[Path, BenchModel, str], Server]) -> Peer:
    """The compiled build, started by `launch` and otherwise measured as the pure one."""
    return replace(
        pure,
        name="compiled",
        title="Shoal, compiled",
        short="compiled",
        launch=launch,
        version=partial(shoal_version, python=COMPILED_PYTHON),
        notes="The same source, with the modules on a request's path compiled by mypyc; measured where "
        "`scripts/_compiled` was run before.",
    )


SHOAL = Peer(
    "shoal", "Shoal", "Shoal", launch_shoal, v2_request, v2_answer, shoal_version,
    "`shoal serve` with its defaults, without gRPC.", runs_python=True,
)  # fmt: skip
PEERS = (
    SHOAL,
    compiled_peer(SHOAL, partial(launch_shoal, python=COMPILED_PYTHON)),
    Peer(
        "triton", "Triton (Python backend)", "Triton", launch_triton, v2_request, v2_answer, _triton_version,
        "The real `tritonserver` that the wheel of nvidia-pytriton carries, without gRPC. The wheel has only the "
        "Python backend, so the models are Python files there; a Triton built with its ONNX Runtime and identity "
        "backends would spend less per request.", runs_python=True,
    ),
    Peer(
        "mosec", "mosec", "mosec", _launch_mosec, plain_request, plain_answer,
        lambda _port: _packages("mosec", "numpy", "onnxruntime", "orjson"),
        "One worker, orjson instead of its json. It has no protocol of its own: it is sent a JSON list of floats, or "
        "just their bytes, and validates nothing. A batch waits up to 1 ms, the least that mosec takes.",
    ),
    Peer(
        "flask", "Flask", "Flask", _launch_flask, plain_request, plain_answer,
        lambda _port: _packages("flask", "gunicorn", "numpy", "onnxruntime"),
        "The model inside a Flask application: gunicorn with a process per core and 8 threads each, the same plain "
        "bodies as for mosec, no batches.",
    ),
)  # fmt: skip
