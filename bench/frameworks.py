"""Compares a framework in a loop of its own with the framework in Shoal: python -m bench.frameworks [NAME...]

Both have the same file, batches, number of threads and cores; they take turns, and the medians count. Through Shoal,
three connections of wrk ask for one whole batch each, so that the next batch is always there. With --own-cores the
framework has the first cores for itself, as on a machine with cores to spare, and wrk and the server's other processes
have the rest; without, all share all cores, and a batch waits for its last thread. The models are in
framework_cases.py. On a busy machine, compare the CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench import instructions, load, measure
from bench.errors import BenchmarkError
from bench.framework_cases import CASES, INPUT, OUTPUT, Array, Case
from bench.server import Server, free_ports
from bench.workloads import binary_request, v2_answer
from shoal.errors import UnsupportedError

CONNECTIONS = 3
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the framework and those of all other processes; equal where they are shared."""

    framework: frozenset[int]
    others: frozenset[int]

    @classmethod
    def divided(cls, own: int) -> "Cores":
        """The first `own` cores for the framework alone; 0: all are shared. Raises BenchmarkError if none is left."""
        every = sorted(os.sched_getaffinity(0))
        if own >= len(every):
            raise BenchmarkError(f"of {len(every)} cores at most {len(every) - 1} can be the framework's own")
        return cls(frozenset(every[: own or None]), frozenset(every[own:]))

    @property
    def policy(self) -> list[str]:
        """The flags by which `shoal serve` keeps instances on the framework's cores."""
        parts = ",".join(f"{core}-{core}" for core in sorted(self.framework))
        return [f"--host-policy=cpu,cpu-cores={parts}"]

    def keep_apart(self, server: int) -> None:
        """Move all threads of a server's processes, except of its instances, to the others' cores."""
        for stat in measure.process_tree(server):
            if instructions.role(instructions.title(stat.pid)) != "worker":
                with suppress(FileNotFoundError, ProcessLookupError):  # ended since the listing
                    for thread in os.listdir(f"/proc/{stat.pid}/task"):
                        os.sched_setaffinity(int(thread), self.others)


@dataclass(frozen=True, slots=True)
class Speed:
    """The result of one measurement."""

    rows_per_s: float
    framework_ms: float  # of CPU per batch: the process with the framework, with all that it does for a server
    cpu_ms: float  # of CPU per batch: all processes that take part but wrk


def batch_of(rows: int, case: Case) -> Array:
    """The input of each request."""
    return np.random.default_rng(rows).normal(size=(rows, case.features)).astype(np.float32)


class Bare:
    """The framework's own loop, in a process without a server."""

    def __init__(self, name: str, file: Path, cores: Cores) -> None:
        listed = ",".join(map(str, cores.framework))
        command = ["taskset", "-c", listed, sys.executable, "-m", "bench.frameworks"]
        command += ["--bare", name, str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, rows: int, seconds: float) -> Speed:
        """Run batches of `rows`, one after another. Raises BenchmarkError where the loop's process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rows} {seconds}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchmarkError(f"the framework's own loop ended with exit code {self._process.wait()}")
        return Speed(*json.loads(answer))

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def run_bare(case: Case, file: Path) -> None:
    """Run the framework's own loop: reads a line with rows and seconds, writes a line with the Speed."""
    run = case.open(file)
    for line in sys.stdin:
        rows, seconds = int(line.split()[0]), float(line.split()[1])
        batch, count = batch_of(rows, case), 0
        for _ in range(3):
            run(batch)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        while not count or time.perf_counter() < started_s + seconds:
            run(batch)
            count += 1
        elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
        cpu_ms = cpu_s * 1000 / count
        print(json.dumps([rows * count / elapsed_s, cpu_ms, cpu_ms]), flush=True)


class Served:
    """A server with the case's model, loaded by wrk."""

    def __init__(self, name: str, file: Path, most_rows: int, folder: Path, cores: Cores) -> None:
        case = CASES[name]
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / case.filename).symlink_to(file)
        (version.parent / "config.pbtxt").write_text(
            f"""
            {case.config} max_batch_size: {most_rows} instance_group {{ count: 1 kind: KIND_CPU }}
            input {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {case.features} ] }}
            output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {case.outputs} ] }}
            """
        )
        [port] = free_ports(1)
        command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve"]
        command += [f"--model-repository={folder}", f"--http-port={port}"]
        command += ["--allow-metrics=false", "--allow-grpc=false", *cores.policy]
        self._name, self._case, self._folder, self._cores = name, case, folder, cores
        self._wrk = load.Wrk()
        self._run = case.open(file)
        self._server = Server(command, os.environ, port, folder / "log")
        self._server.start()

    def measure(self, rows: int, seconds: float) -> Speed:
        """Send requests for `rows` each, after one whose answer is compared with the framework's own. Raises
        BenchmarkError where that answer is wrong."""
        batch = batch_of(rows, self._case)
        request = binary_request(self._name, {INPUT: ("FP32", batch.shape, batch.tobytes())}, [OUTPUT])
        expected = self._run(batch)

        def check(headers: Mapping[str, str], body: bytes) -> None:
            answer = np.array(v2_answer(headers, body), np.float32).reshape(expected.shape)
            if not np.allclose(answer, expected, atol=TOLERANCE):
                raise BenchmarkError(f"the answer is off by {np.abs(answer - expected).max()}")

        self._server.wait_for_answer(request, check)
        body = self._folder / "body"
        body.write_bytes(request.body)
        self._cores.keep_apart(self._server.pid)
        beside = ["taskset", "-c", ",".join(map(str, self._cores.others))]
        pids = [stat.pid for stat in measure.process_tree(self._server.pid)]
        [worker] = [pid for pid in pids if instructions.role(instructions.title(pid)) == "worker"]
        before_s = [measure.cpu_s(pid) for pid in (worker, self._server.pid)]
        target = load.Target(self._server.port, request, body, CONNECTIONS)
        seen = self._wrk.shoot(target, seconds, prefix=beside)
        if seen.errors:
            raise BenchmarkError(f"{seen.errors} requests failed")
        used_s = [measure.cpu_s(pid) for pid in (worker, self._server.pid)]
        cpu_ms = [(after - before) * 1000 / seen.requests for before, after in zip(before_s, used_s, strict=True)]
        return Speed(seen.requests_per_s * rows, *cpu_ms)

    def stop(self) -> None:
        """Stop the server."""
        self._server.stop()


def compare(name: str, sizes: Sequence[int], seconds: float, num_rounds: int, own_cores: int) -> str:
    """A table of both speeds at each size of batch, and the ratio at the fastest."""
    cores = Cores.divided(own_cores)
    with tempfile.TemporaryDirectory(prefix="shoal-frameworks-") as folder:
        file = Path(folder, CASES[name].filename)
        CASES[name].save(file)
        bare, served = Bare(name, file, cores), Served(name, file, max(sizes), Path(folder, "models"), cores)
        try:
            seen: dict[int, tuple[list[Speed], list[Speed]]] = {size: ([], []) for size in sizes}
            for _ in range(num_rounds):
                for size, (alone, through) in seen.items():
                    alone.append(bare.measure(size, seconds))
                    through.append(served.measure(size, seconds))
        finally:
            bare.stop()
            served.stop()
    lines = [
        f"{name}: rows/s, medians of {num_rounds} rounds of {seconds:g} s on {len(cores.framework)} "
        f"{'cores of its own' if own_cores else 'cores, shared'}",
        "  batch      bare  through Shoal  ratio   CPU ms per batch: bare, the instance, all of Shoal",
    ]
    for size, (alone, through) in seen.items():
        rates = [median([each.rows_per_s for each in side]) for side in (alone, through)]
        used_ms = [median([each.framework_ms for each in side]) for side in (alone, through)]
        all_ms = median([each.cpu_ms for each in through])
        lines.append(
            f"{size:7} {rates[0]:9.0f} {rates[1]:14.0f} {rates[1] / rates[0]:6.1%} "
            f"{used_ms[0]:26.1f}, {used_ms[1]:.1f}, {all_ms:.1f}"
        )
    best = [max(median([each.rows_per_s for each in speeds[side]]) for speeds in seen.values()) for side in (0, 1)]
    return "\n".join([*lines, f"  best batch of each: {best[1] / best[0]:.1%}"])


def main(arguments: Sequence[str]) -> None:
    """Measure the named cases, or all."""
    parser = argparse.ArgumentParser("bench.frameworks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64], help="sizes of batches")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement (wrk takes whole ones)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--own-cores", type=int, default=0, help="that only the framework uses (default: all share all)"
    )
    parser.add_argument("--bare", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        run_bare(CASES[options.bare[0]], Path(options.bare[1]))
        return
    for name in options.names:
        if name not in CASES:
            parser.error(f"no case is called '{name}'; there are {', '.join(CASES)}")
    for name in options.names or CASES:
        try:
            print(compare(name, options.rows, options.seconds, options.rounds, options.own_cores), flush=True)
        except UnsupportedError as error:
            print(f"{name}: not measured: {error}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BenchmarkError as error:
        sys.exit(f"bench.frameworks: {error}")
