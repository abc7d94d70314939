"""Shoal beside Triton under NVIDIA's perf_analyzer: .venv-bench/bin/python -m bench.perf_analyzer PATH

All servers run at once and are asked in turns over HTTP, then over gRPC: 16 floats by 16 connections. A turn is the
mean of three windows, the fewest that perf_analyzer takes. Its own CPU time per request comes from the same cores, so
the ratios are smaller than those of wrk. PATH is the program: NVIDIA's wheel of tritonclient 2.48 has it, under
data/bin; it needs libb64 and CUDA's runtime library, and no GPU.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import grpc_chapter, peers
from bench.errors import BenchmarkError
from bench.grpc_load import H2load
from bench.load import Wrk
from bench.workloads import IDENTITY_16

CONNECTIONS, SECONDS = 16, 1
BUILDS = ("shoal", "compiled", "triton")


class Window(NamedTuple):
    """The figures of a run: all its windows together."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float


def run_perf_analyzer(
    program: Path, model: str, port: int, connections: int, seconds: float, protocol: str = "http",
    prefix: Sequence[str] = (),
) -> Window:  # fmt: skip
    """Run perf_analyzer with inputs of zeros and three windows of `seconds`. Raises BenchmarkError.

    `prefix` are the words of a command that runs the rest of its line.
    """
    with tempfile.NamedTemporaryFile(suffix=".csv") as report:
        command = [str(program), "-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol, "-f", report.name]
        command += [f"--concurrency-range={connections}", "--input-data=zero", "--stability-percentage=999"]
        command += [f"--measurement-interval={seconds * 1000:.0f}", "--percentile=50"]
        done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise BenchmarkError(f"perf_analyzer: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        (found,) = csv.DictReader(Path(report.name).read_text().splitlines())
    p50_ms, p99_ms = (float(found[f"{each} latency"]) / 1000 for each in ("p50", "p99"))
    return Window(float(found["Inferences/Second"]), p50_ms, p99_ms)


def compare(folder: Path, program: Path, protocol: str, num_turns: int) -> dict[str, list[Window]]:
    """The turns of each server that is installed."""
    every, generator = (peers.PEERS, Wrk()) if protocol == "http" else (grpc_chapter.PEERS, H2load())
    request_encoding = "binary" if protocol == "http" else "grpc"
    found: dict[str, list[Window]] = {}
    with ExitStack() as stack:
        servers = {}
        for peer in every:
            if peer.name in BUILDS:
                where = folder / f"{protocol}-{peer.name}"
                where.mkdir()
                server = peer.launch(where, IDENTITY_16, request_encoding)
                request = peer.request(IDENTITY_16, request_encoding)
                servers[peer.name] = stack.enter_context(server.running(request, generator.ask))
        for turn in range(num_turns + 1):
            for name, server in reversed(servers.items()) if turn % 2 else servers.items():
                seen = run_perf_analyzer(program, IDENTITY_16.name, server.port, CONNECTIONS, SECONDS, protocol)
                if turn:  # the first one warms up
                    found.setdefault(name, []).append(seen)
    return found


def main() -> None:
    """Measure both protocols, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="PATH")
    parser.add_argument("--turns", type=int, default=6)
    given = parser.parse_args()
    print("| protocol, server | requests/s | p50 ms | p99 ms | × Triton's rate (range) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for protocol in ("http", "grpc"):
            found = compare(Path(folder), given.program, protocol, given.turns)
            for name, turns in found.items():
                pairs = zip(turns, found["triton"], strict=True)
                ratios = sorted(mine.requests_per_s / theirs.requests_per_s for mine, theirs in pairs)
                medians = [median(column) for column in zip(*turns, strict=True)]
                print(
                    f"| {protocol}, {name} | {medians[0]:,.0f} | {medians[1]:.2f} | {medians[2]:.2f} "
                    f"| {median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.perf_analyzer: {error}")
