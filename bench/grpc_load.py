"""Closed-loop load over gRPC: h2load keeps a number of calls open on a number of connections.

Runs h2load and reads its figures; knows no server. h2load is written in C and knows HTTP/2, but not gRPC: a refused
call counts as a success, since its HTTP status is 200. So bytes are counted as well: each right answer has as many as
the one that was checked, and a refusal has none.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Any

from bench.errors import BenchmarkError
from bench.grpc_words import PREFIX_BYTES, channel
from bench.load import Load, Target, children_cpu_s
from bench.workloads import Request

_PATIENCE_S = 10
_REQUESTS = re.compile(r"^requests: .* (\d+) succeeded, (\d+) failed,", re.MULTILINE)
_DATA = re.compile(r"^traffic: .* \((\d+)\) data$", re.MULTILINE)
_RATE = re.compile(r"^finished in \S+, ([\d.]+) req/s", re.MULTILINE)
_PER_CONNECTION = re.compile(r"^req/s\s*:\s*([\d.]+)\s+([\d.]+)", re.MULTILINE)


class H2load:
    """The load generator h2load, with grpcio for single requests. Raises BenchmarkError where it is not installed."""

    def __init__(self) -> None:
        found = shutil.which("h2load")
        if found is None:
            raise BenchmarkError(
                "h2load, which makes the load, is not installed. On Debian and Ubuntu: apt install nghttp2-client"
            )
        self._path = found

    @property
    def title(self) -> str:
        """The generator's name and version."""
        output = subprocess.run([self._path, "--version"], capture_output=True, text=True, check=True).stdout
        return output.strip().replace(" nghttp2/", " ")

    def ask(self, port: int, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        """Make one call on a connection of its own. Raises OSError with the status where that is not OK."""
        import grpc

        with channel(port) as opened:
            call: Any = opened.unary_unary(request.path)
            try:
                answer: bytes = call(request.body[PREFIX_BYTES:], timeout=_PATIENCE_S)
            except grpc.RpcError as error:
                raise OSError(f"{error.code().name}: {error.details()}") from error
        return 200, {}, answer

    def shoot(self, target: Target, seconds: float, rate: float | None = None, prefix: Sequence[str] = ()) -> Load:
        """Like `Generator.shoot`. A `rate` sets the number of calls: then none is cut off, and all bytes count. Raises
        BenchmarkError."""
        port, request = target.port, target.request
        answer_nbytes = PREFIX_BYTES + len(self.ask(port, request)[2])
        num_at_once = target.connections * target.streams
        amount = ["-D", f"{max(1, round(seconds))}"]
        if rate is not None:
            amount = ["-n", f"{max(1, round(rate * seconds / num_at_once)) * num_at_once}"]
        with tempfile.NamedTemporaryFile("r", prefix="h2load-", suffix=".log") as log:
            command = [*prefix, self._path, *amount, "-c", str(target.connections), "-m", str(target.streams)]
            command += [word for name, value in request.headers.items() for word in ("-H", f"{name}: {value}")]
            command += ["-d", str(target.body), f"--log-file={log.name}", f"http://127.0.0.1:{port}{request.path}"]
            before_s = children_cpu_s()
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 10 + 60, check=False)
            cpu_s = children_cpu_s() - before_s
            if done.returncode != 0:
                raise BenchmarkError(f"h2load ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
            return parse(done.stdout, log.read(), answer_nbytes, cpu_s)


def parse(output: str, log: str, answer_nbytes: int, cpu_s: float) -> Load:
    """The load from h2load's output and its log of calls: when begun, HTTP status, microseconds until the whole answer.

    Raises BenchmarkError where figures are missing or nothing was answered.
    """
    requests, data, rate, per_connection = (
        found.search(output) for found in (_REQUESTS, _DATA, _RATE, _PER_CONNECTION)
    )
    if not (requests and data and rate and per_connection):
        raise BenchmarkError(f"h2load printed no figures: {output.strip()!r}")
    num_ended, num_failed = int(requests[1]), int(requests[2])
    # Calls that were cut off at the end may have received bytes, too.
    num_answered = min(num_ended, int(data[1]) // answer_nbytes)
    errors = num_failed + num_ended - num_answered
    times_us = [int(line.split("\t")[2]) for line in log.splitlines()]
    if not num_answered or not times_us:
        raise BenchmarkError(f"no request was answered ({errors} errors)")
    percentiles = quantiles(times_us, n=100, method="inclusive") if len(times_us) > 1 else times_us * 99
    return Load(
        num_answered, num_ended / float(rate[1]), round(percentiles[49]), round(percentiles[98]), cpu_s, errors,
        max(times_us), float(per_connection[1]), float(per_connection[2]),
    )  # fmt: skip
