"""Compares `shoal bench` with wrk: python -m bench.load_clients [--turns COUNT] [--together | --perf-analyzer PATH]

Both keep the same number of connections busy with the same bytes, against one server, in turns A B B A …; a row has the
medians, and the ratio of each pair of neighbours. A closed loop asks as often as server and client together let it, so
its throughput is the server's alone where the client has cores of its own and waits for answers: the server's processes
are on the first core, the client on the second. Rows with shared cores say what a client takes away from a server.

With --perf-analyzer the other is that program in wrk's place, with bytes of its own (bench/perf_analyzer.py).

With --together both ask at the same time, with as many connections each, so that they meet the same server on the same
machine, however busy: a server that answers in turn gives both as much, so differences are the clients' own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from bench.errors import BenchmarkError
from bench.load import Target, Wrk, children_cpu_s
from bench.measure import quiet_turn
from bench.peers import SHOAL_PYTHON, launch_shoal
from bench.perf_analyzer import run_perf_analyzer
from bench.server import Server
from bench.workloads import ADD_SUB, IDENTITY_16, MLP_512, WAITING, BenchModel, Request, v2_request
from shoal.cli.bench.loads import Load
from shoal.cli.bench.targets import http_body, target
from shoal.cli.remote import RemoteServer
from shoal.cli.run_inputs import read_requests
from shoal.model_config.signature import Signature

SECONDS = 2
#: The largest share of the machine's time that other programs may take in a pair of turns, and how many pairs are
#: measured at most for one that is wanted (ours).
MOST_FOREIGN, MOST_TRIES = 0.04, 5
_BIND = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures of one turn. Latencies in ms; `busy` is the client's CPU time as a share of the turn."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    busy: float


@dataclass(frozen=True, slots=True)
class Situation:
    """A model, a number of connections, and whether server and client have a core each."""

    model: BenchModel
    connections: int
    is_apart: bool


SITUATIONS = (
    *(Situation(model, number, is_apart=True) for model in (IDENTITY_16, MLP_512) for number in (1, 16, 64)),
    *(Situation(model, number, is_apart=False) for model in (IDENTITY_16, MLP_512) for number in (1, 16, 64)),
    Situation(ADD_SUB, 16, is_apart=True),
    *(Situation(WAITING, number, is_apart=True) for number in (1, 16)),
)


def bound(cores: str) -> list[str]:
    """The beginning of a command line whose rest runs on these cores."""
    return [sys.executable, "-c", _BIND, cores]


def by_bench(port: int, situation: Situation, prefix: list[str]) -> Seen:
    """A turn of `shoal bench`."""
    command = [f"{SHOAL_PYTHON.with_name('shoal')}", "bench", situation.model.name, "--json", "--sample=ones"]
    command += [f"--url=http://127.0.0.1:{port}", f"--concurrency={situation.connections}"]
    command += ["--warm-up=0.3", f"--window={SECONDS}", "--windows=1"]
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise BenchmarkError(f"shoal bench: {done.stderr}")
    (level,) = json.loads(done.stdout)["levels"]
    busy = level["client"]["cpu_us_per_request"] * level["requests_per_s"] / 1e6
    return Seen(level["requests_per_s"], level["p50_ms"], level["p99_ms"], busy)


def by_wrk(
    port: int, situation: Situation, prefix: list[str], request: Request, body: Path, warm_up_s: float = 0.3
) -> Seen:
    """A turn of wrk, after as long a time as `shoal bench` does not count."""
    asked = Target(port, request, body, situation.connections)
    if warm_up_s:
        Wrk().shoot(asked, warm_up_s, prefix=prefix)
    seen = Wrk().shoot(asked, SECONDS, prefix=prefix)
    if seen.errors:
        raise BenchmarkError(f"wrk: {seen.errors} errors")
    return Seen(seen.requests_per_s, seen.p50_us / 1000, seen.p99_us / 1000, seen.cpu_s / seen.duration_s)


def by_perf_analyzer(port: int, situation: Situation, prefix: list[str], program: Path) -> Seen:
    """A turn of perf_analyzer: the mean of three windows, the fewest it takes."""
    before_s, start_s = children_cpu_s(), time.monotonic()
    found = run_perf_analyzer(program, situation.model.name, port, situation.connections, SECONDS, prefix=prefix)
    return Seen(*found, (children_cpu_s() - before_s) / (time.monotonic() - start_s))


@contextmanager
def serving(folder: Path, model: BenchModel, cores: str) -> Iterator[Server]:
    """A server of this model on these cores, with one lane: chance decides which of several lanes gets a connection,
    and several lanes on one core cost more than one."""
    os.sched_setaffinity(0, set(map(int, cores.split(","))))
    with launch_shoal(folder, model, "binary", flags=["--http-process-count=1"]).running(
        v2_request(model, "binary")
    ) as server:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        yield server


def request_of(port: int, model: BenchModel) -> Request:
    """The request that `shoal bench` sends, for wrk."""
    with closing(RemoteServer(f"http://127.0.0.1:{port}", timeout_s=10, headers={})) as server:
        config = server.model_config(model.name)
    (given,) = read_requests(config, [], None, "ones")
    path = f"/v2/models/{model.name}/infer"
    head, _, body = http_body(path, "", Signature.from_config(config), given).partition(b"\r\n\r\n")
    lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    return Request(path, {name: value for name, value in lines if name not in ("Host", "Content-Length")}, body)


def together(folder: Path, situation: Situation, num_turns: int) -> tuple[list[Seen], list[Seen]]:
    """Turns in which both ask at once. The loop of `shoal bench` runs in this process, on the core that wrk has,
    too."""
    found: tuple[list[Seen], list[Seen]] = ([], [])
    cores = "0" if situation.is_apart else "0,1"
    with serving(folder, situation.model, cores) as server, ExitStack() as stack:
        port = server.port
        request = request_of(port, situation.model)
        body = folder / "body"
        body.write_bytes(request.body)
        os.sched_setaffinity(0, {1} if situation.is_apart else {0, 1})
        stack.callback(os.sched_setaffinity, 0, range(os.cpu_count() or 1))
        asked = stack.enter_context(closing(target(f"http://127.0.0.1:{port}", None, situation.model.name, "", 60)))
        config = asked.config()
        requests = read_requests(config, [], None, "ones")
        transport = stack.enter_context(closing(asked.connect(Signature.from_config(config), requests)))
        load = Load(transport, situation.connections, None, timeout_s=60)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for _ in range(num_turns):
            load.run(0.3)
            other = pool.submit(by_wrk, port, situation, [], request, body, warm_up_s=0)
            window = load.run(SECONDS)
            found[1].append(other.result())
            p50_ms, p99_ms = window.percentile_ms(50) or 0.0, window.percentile_ms(99) or 0.0
            found[0].append(Seen(window.requests_per_s, p50_ms, p99_ms, window.cpu_ns / window.duration_ns))
    return found


def measure(
    folder: Path, situation: Situation, num_turns: int, perf_analyzer: Path | None = None
) -> tuple[list[Seen], list[Seen]]:
    """All turns of `shoal bench`, and of wrk or perf_analyzer."""
    servers, clients = ("0", "1") if situation.is_apart else ("0,1", "0,1")
    with serving(folder, situation.model, servers) as server:
        request = request_of(server.port, situation.model)
        body = folder / "body"
        body.write_bytes(request.body)
        prefix = bound(clients)
        other: Callable[[], Seen] = partial(by_wrk, server.port, situation, prefix, request, body)
        if perf_analyzer is not None:
            other = partial(by_perf_analyzer, server.port, situation, prefix, perf_analyzer)
        ways: list[Callable[[], Seen]] = [partial(by_bench, server.port, situation, prefix), other]
        found: tuple[list[Seen], list[Seen]] = ([], [])
        for turn in range(num_turns * MOST_TRIES):
            order = (1, 0) if turn % 2 else (0, 1)
            pair, is_quiet = quiet_turn(partial(_pair, ways, order), MOST_FOREIGN)
            if is_quiet:
                found[0].append(pair[0])
                found[1].append(pair[1])
            if len(found[0]) == num_turns:
                break
    if not found[0]:
        raise BenchmarkError("other programs take too much of this machine")
    return found


def _pair(ways: Sequence[Callable[[], Seen]], order: Sequence[int]) -> dict[int, Seen]:
    return {way: ways[way]() for way in order}


def row(situation: Situation, mine: list[Seen], theirs: list[Seen]) -> str:
    """A line of the table: medians of both, and the median and range of the ratios of neighbouring turns."""
    pairs = list(zip(mine, theirs, strict=True))
    ratios = sorted(one.requests_per_s / other.requests_per_s for one, other in pairs)
    place = "a core each" if situation.is_apart else "shared cores"
    cells = [f"{situation.model.name}, {situation.connections} at once, {place}"]
    for side in (mine, theirs):
        cells += [f"{median(each.requests_per_s for each in side):,.0f}", f"{median(each.p50_ms for each in side):.3f}"]
        cells += [f"{median(each.p99_ms for each in side):.2f}", f"{median(each.busy for each in side):.0%}"]
    cells.append(f"{median(ratios):.3f} ({ratios[0]:.3f}–{ratios[-1]:.3f})")
    cells.append(f"{median(one.p50_ms / other.p50_ms for one, other in pairs):.3f}")
    cells.append(f"{len(pairs)}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure all situations, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of situations, from 0")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--together", action="store_true", help="both at the same time")
    way.add_argument("--perf-analyzer", type=Path, help="the program that takes the place of wrk")
    given = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("A core each needs two cores.")
    print(
        "| | bench: requests/s | p50 ms | p99 ms | busy | the other: requests/s | p50 ms | p99 ms | busy "
        "| ratio | of p50 | turns |"
    )
    print("|---" * 12 + "|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for number, situation in enumerate(SITUATIONS):
            if given.only is None or number in given.only:
                if given.together:
                    found = together(Path(folder), situation, given.turns)
                else:
                    found = measure(Path(folder), situation, given.turns, given.perf_analyzer)
                print(row(situation, *found), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.load_clients: {error}")
