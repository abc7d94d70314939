"""Closed-loop load: wrk keeps a number of connections busy, each with a new request as soon as the last is answered.

Runs wrk and reads its figures; knows no server. wrk is written in C and so cheap that the servers get nearly all of the
machine's CPU time.
"""

import math
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.errors import BenchmarkError
from bench.server import ask
from bench.workloads import Request

SCRIPT = Path(__file__).with_name("load.lua")
_FAULTS = ("connect", "read", "write", "status", "timeout")


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run of a load generator."""

    requests: int
    duration_s: float
    p50_us: int
    p99_us: int
    cpu_s: float  # of the generator itself
    errors: int  # failed connections, answers that were not 2xx or not gRPC's OK, timeouts
    slowest_us: int = 0  # of all requests, where the generator reports it
    least_per_s: float = 0.0  # requests a second of the connection with the fewest, and of the one with the most
    most_per_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.requests / self.duration_s


@dataclass(frozen=True, slots=True)
class Target:
    """The server and request of a load, and the number of connections."""

    port: int
    request: Request
    body: Path  # holds the request's body
    connections: int
    streams: int = 1  # requests at a time on each connection, by HTTP/2
    #: Whether each request has a trace of its own, and an id of its own in the place that workloads.py leaves for it.
    is_distinct: bool = False


class Generator(Protocol):
    """A load generator, with a way to send a single request."""

    @property
    def title(self) -> str:
        """The generator's name and version."""
        ...

    def ask(self, port: int, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request on a connection of its own; returns status, headers with lower-case names, body."""
        ...

    def shoot(self, target: Target, seconds: float, rate: float | None = None, prefix: Sequence[str] = ()) -> Load:
        """Load the server for `seconds`; returns the figures.

        `rate` is the rate of an earlier load, where there was one. `prefix` are the words of a command that runs the
        rest of its line.
        """
        ...


class Wrk:
    """The load generator wrk, for HTTP. Raises BenchmarkError, with the command that installs it, if missing."""

    def __init__(self) -> None:
        found = shutil.which("wrk")
        if found is None:
            raise BenchmarkError("wrk, which makes the load, is not installed. On Debian and Ubuntu: apt install wrk")
        self._path = found

    @property
    def title(self) -> str:
        """The generator's name and version."""
        # wrk -v prints the version and ends with exit code 1.
        output = subprocess.run([self._path, "-v"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"wrk (?:debian/)?([0-9.]+)", output)
        return f"wrk {version[1]}" if version else "wrk"

    def ask(self, port: int, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request over HTTP, as `Generator.ask` says."""
        return ask(port, request)

    def shoot(self, target: Target, seconds: float, rate: float | None = None, prefix: Sequence[str] = ()) -> Load:
        """Like `Generator.shoot`. wrk runs for whole seconds, so it is interrupted in the middle of one. Raises
        BenchmarkError."""
        del rate
        request = target.request
        is_cut = seconds % 1 != 0
        # Before wrk handles signals, an interrupt would end it without figures; ignored, it is lost, and wrk runs on.
        deaf = ["env", "--ignore-signal=INT"] if is_cut else []
        command = [*prefix, *deaf, self._path, "-t1", f"-c{target.connections}", f"-d{math.ceil(seconds)}s"]
        command += ["--timeout=10s", "-s", str(SCRIPT), f"http://127.0.0.1:{target.port}{request.path}"]
        kind = "distinct" if target.is_distinct else "equal"
        command += ["--", str(target.body), kind, *(f"{name}: {value}" for name, value in request.headers.items())]
        before_s = children_cpu_s()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as wrk:
            try:
                said, _ = wrk.communicate(timeout=seconds if is_cut else seconds + 60)
            except subprocess.TimeoutExpired:
                wrk.send_signal(signal.SIGINT)
                said, _ = wrk.communicate(timeout=60)
        if wrk.returncode != 0:
            raise BenchmarkError(f"wrk ended with exit code {wrk.returncode}: {said}")
        return parse(said, children_cpu_s() - before_s)


def parse(output: str, cpu_s: float) -> Load:
    """The figures that load.lua prints. Raises BenchmarkError where they are missing or nothing was answered."""
    lines = [line for line in output.splitlines() if line.startswith("figures ")]
    if len(lines) != 1:
        raise BenchmarkError(f"wrk printed no figures: {output.strip()!r}")
    figures = {name: int(number) for name, _, number in (pair.partition("=") for pair in lines[0].split()[1:])}
    errors = sum(figures[fault] for fault in _FAULTS)
    if not figures["requests"]:
        raise BenchmarkError(f"no request was answered ({errors} errors)")
    return Load(figures["requests"], figures["duration_us"] / 1e6, figures["p50_us"], figures["p99_us"], cpu_s, errors)


def children_cpu_s() -> float:
    """CPU seconds of all child processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
