"""Closed-loop load: wrk keeps a number of connections busy, each asking again as soon as it was answered.

Runs wrk and reads its figures; knows no server. wrk is written in C and so cheap that the servers get nearly all of the
machine.
"""

import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.errors import BenchmarkError
from scripts.benchmark.workloads import Request

SCRIPT = Path(__file__).with_name("load.lua")
_FAULTS = ("connect", "read", "write", "status", "timeout")


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of wrk saw."""

    requests: int
    duration_s: float
    p50_us: int
    p99_us: int
    cpu_s: float  # of wrk itself
    errors: int  # connections that failed, answers that were not 2xx, timeouts

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.requests / self.duration_s


def find_wrk() -> str:
    """The path of wrk. Raises BenchmarkError, with the command that installs it, where there is none."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise BenchmarkError("wrk, which makes the load, is not installed. On Debian and Ubuntu: apt install wrk")
    return wrk


def run(
    wrk: str, port: int, request: Request, body: Path, connections: int, seconds: float, prefix: Sequence[str] = ()
) -> Load:
    """Load the server on `port` for `seconds` (wrk takes whole ones); `body` holds the request's body.

    `prefix` are words of a command that runs the rest of its line as a command.
    """
    headers = [f"{name}: {value}" for name, value in request.headers.items()]
    url = f"http://127.0.0.1:{port}{request.path}"
    command = [
        *prefix,
        wrk,
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout=10s",
        "-s",
        str(SCRIPT),
        url,
    ]
    before_s = _children_cpu_s()
    done = subprocess.run(
        [*command, "--", str(body), *headers], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"wrk ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
    return parse(done.stdout, _children_cpu_s() - before_s)


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


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
