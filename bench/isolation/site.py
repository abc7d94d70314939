"""A running server of one checkout of Shoal, for a situation: its ports and processes, and actions on them."""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import instructions
from bench.background_load import raw
from bench.errors import BenchmarkError
from bench.isolation import models as repository
from bench.isolation.crowd import Callers, Crowd, Guests
from bench.isolation.probe import GrpcProbe, HttpProbe, Probe, infer, message, paced
from bench.measure import process_tree
from bench.server import Server, ask, free_ports
from bench.workloads import READY

#: Seconds for anything that takes milliseconds: a standby's start, the beginning of an execution.
DEADLINE_S = 15.0
POLL_S = 0.005
_ESTABLISHED = "01"
MODELS, SOCKET = "models", "socket"  # in a server's folder
#: A program for the checkout's own Python.
_CLIENTS = """
import sys, numpy as np, shoal
clients = [shoal.Client(sys.argv[2]) for _ in range(int(sys.argv[1]))]
for each in clients:
    each.infer("quick", {"INPUT0": np.ones(1, np.float32)})
print("joined", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree of Shoal with an environment in .venv."""

    folder: Path
    title: str

    @staticmethod
    def at(folder: Path) -> "Checkout":
        """The checkout in a folder, named by its commit. Raises BenchmarkError where Shoal is not installed there."""
        folder = folder.resolve()
        if not (folder / ".venv" / "bin" / "shoal").exists():
            raise BenchmarkError(f"{folder} has no .venv with Shoal: run scripts/serve there once")
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return Checkout(folder, said or folder.name)


class Site:
    """A server, as a situation uses it."""

    def __init__(
        self, checkout: Checkout, server: Server, folder: Path, http_port: int, grpc_port: int, metrics_port: int
    ) -> None:
        self._folder = checkout.folder
        self._server = server
        self._models, self._socket = folder / MODELS, folder / SOCKET
        self.http_port, self.grpc_port, self.metrics_port = http_port, grpc_port, metrics_port

    def http(self, model: str, numbers: Sequence[float] = (1.0,), num_connections: int = 1) -> HttpProbe:
        """A paced client over HTTP for this model."""
        return HttpProbe(self.http_port, infer(model, numbers), num_connections)

    def grpc(self, model: str, numbers: Sequence[float] = (1.0,)) -> GrpcProbe:
        """A paced client over gRPC for this model."""
        return GrpcProbe(self.grpc_port, message(model, numbers))

    def guests(
        self,
        *requests: tuple[str, Sequence[float]],
        count: int,
        every_s: float = 0.0,
        bytes_per_s: float | None = None,
    ) -> Crowd:
        """A crowd of clients over HTTP for these models."""
        datas = [raw(infer(*each)).decode("latin-1") for each in requests]
        return Crowd(Guests(self.http_port, datas, count, every_s, bytes_per_s))

    def callers(
        self,
        model: str,
        numbers: Sequence[float],
        count: int,
        channels: int = 1,
        *,
        is_stream: bool = False,
        is_silent: bool = False,
    ) -> Crowd:
        """A crowd of clients over gRPC for this model."""
        packed = message(model, numbers).decode("latin-1")
        return Crowd(Callers(self.grpc_port, packed, count, channels, is_stream, is_silent))

    @contextmanager
    def clients(self, count: int) -> Iterator[None]:
        """A context in which this many `shoal.Client` of the checkout have asked once, and are idle. Raises
        BenchmarkError where they could not."""
        command = [f"{self._folder / '.venv' / 'bin' / 'python'}", "-c", _CLIENTS, str(count), f"{self._socket}"]
        process = subprocess.Popen(command, cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], DEADLINE_S)[0] or not process.stdout.readline():
                raise BenchmarkError(f"{count} clients could not join")
            yield
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    @contextmanager
    def executing(self, model: str, seconds: float) -> Iterator[None]:
        """A context in which a worker of this model executes one request; the worker notes that it has begun."""
        begun = self._models / model / "begun"
        begun.unlink(missing_ok=True)
        with socket.create_connection(("127.0.0.1", self.http_port), DEADLINE_S) as connection:
            connection.sendall(raw(infer(model, [seconds])))
            wait_until(begun.exists, f"{model} to execute")
            yield

    def pids(self, title: str) -> list[int]:
        """The processes with exactly this title, or with this title and a placement in parentheses."""
        return [pid for pid, name in self._titles() if name.partition(" (CPU")[0] == title]

    def kill(self, title: str) -> float:
        """Send SIGKILL to the first process with this title; returns the time. Raises BenchmarkError without one."""
        found = self.pids(title)
        if not found:
            raise BenchmarkError(f"no process is called '{title}'")
        now_s = time.monotonic()
        os.kill(found[0], signal.SIGKILL)
        return now_s

    def wait_for_standby(self) -> None:
        """Wait until a batcher serves and another stands by."""
        wait_until(
            lambda: bool(self.pids("shoal batcher") and self.pids("shoal batcher (standby)")), "a batcher's standby"
        )

    def connections(self, title: str, port: int) -> dict[int, list[int]]:
        """The processes with this title → the clients' ports of their connections at `port`, from the kernel."""
        inodes = established(Path("/proc/net/tcp").read_text(), port)
        found = {}
        for pid in self.pids(title):
            links = [_link(each) for each in _files(pid)]
            found[pid] = [inodes[each] for each in links if each in inodes]
        return found

    def _titles(self) -> list[tuple[int, str]]:
        return [(stat.pid, instructions.title(stat.pid)) for stat in process_tree(self._server.pid)]


def established(table: str, port: int) -> dict[str, int]:
    """Connections at a local port, from the lines of /proc/net/tcp: "socket:[inode]" → the other side's port."""
    found = {}
    for row in table.splitlines()[1:]:
        cells = row.split()
        if cells[3] == _ESTABLISHED and int(cells[1].rpartition(":")[2], 16) == port:
            found[f"socket:[{cells[9]}]"] = int(cells[2].rpartition(":")[2], 16)
    return found


def _files(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _link(file: Path) -> str:
    try:
        return os.readlink(file)
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cpu_us(pid: int) -> float:
    """A process's CPU time in microseconds, as the scheduler counts it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Poll until `is_so` returns True. Raises BenchmarkError after DEADLINE_S."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > end_s:
            raise BenchmarkError(f"waited {DEADLINE_S:g} s in vain for {what}")
        time.sleep(POLL_S)


@contextmanager
def serving(checkout: Checkout, folder: Path, models: Mapping[str, str], flags: Sequence[str]) -> Iterator[Site]:
    """A context with a running server of this checkout; afterwards the server is stopped and its files are removed."""
    http_port, grpc_port, metrics_port = free_ports(3)
    repository.write(folder / MODELS, models)
    command = [f"{checkout.folder / '.venv' / 'bin' / 'shoal'}", "serve", f"--model-repository={folder / MODELS}"]
    command += [f"--http-port={http_port}", f"--metrics-port={metrics_port}", "--exit-timeout-secs=1"]
    is_grpc = any("grpc" in flag for flag in flags)
    command += [f"--grpc-port={grpc_port}"] if is_grpc else ["--allow-grpc=false"]
    command += [f"--client-socket={folder / SOCKET}", *flags]
    server = Server(command, os.environ, http_port, folder / "log", folder=checkout.folder)
    with server.running(READY, partial(ask, method="GET")):
        site = Site(checkout, server, folder, http_port, grpc_port, metrics_port)
        site.wait_for_standby()
        yield site


@contextmanager
def warm(probe: Probe, seconds: float = 0.5) -> Iterator[Probe]:
    """A context with a probe that has been answered for a while; closed afterwards."""
    try:
        paced(probe, seconds)
        yield probe
    finally:
        probe.close()
