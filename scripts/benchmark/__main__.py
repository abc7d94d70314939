"""scripts/bench: measures Shoal and its peers side by side, in alternating rounds, and prints the tables."""

import argparse
import functools
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from scripts.benchmark import load, measure
from scripts.benchmark.document import Conditions, conditions, markdown
from scripts.benchmark.errors import BenchmarkError
from scripts.benchmark.peers import NUM_CPUS, PEERS, ROOT, Peer
from scripts.benchmark.picture import svg
from scripts.benchmark.results import Row, Sample
from scripts.benchmark.server import Server
from scripts.benchmark.table import details, summary
from scripts.benchmark.workloads import WORKLOADS, Model, Workload, expected, verify

DOCUMENT = ROOT / "docs" / "benchmarks.md"

HELP = """\
Measures Shoal, Triton, mosec and Flask with the same models under the same load, one server at a time, in rounds
A B C D A B C D …, and prints the medians as Markdown. Every server's answer is checked before it is timed.

  scripts/bench --quick                        a first impression, in less than a minute
  scripts/bench --peer shoal --workload 'mlp*' what a change to Shoal did to one workload
  scripts/bench --write                        everything, into docs/benchmarks.md and docs/benchmarks.svg

Load comes from wrk on the same machine (apt install wrk): close other programs, and compare only figures of one run.
CPU µs per request, over all processes of a server, is the figure that a busy machine disturbs least.
"""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "scripts/bench",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Workloads:\n" + "\n".join(f"  {each.name:16} {each.title}" for each in WORKLOADS),
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--workload", action="append", metavar="NAME", help="name or pattern; repeat it (default: all)")
    parser.add_argument("--peer", action="append", choices=names, help="repeat it for several (default: all)")
    parser.add_argument("--seconds", type=int, default=4, help="of load per workload, server and round (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help="three workloads, one round of one second, no Flask")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.relative_to(ROOT)} and its picture")
    options = parser.parse_args(arguments)
    if options.quick:
        options.workload = options.workload or ["json-c10", "mlp-c64", "image-c8"]
        options.peer = options.peer or ["shoal", "triton", "mosec"]
        options.rounds = options.seconds = 1
    patterns = options.workload or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(each.name, pattern) for each in WORKLOADS):
            parser.error(f"no workload is called '{pattern}'; there are {', '.join(each.name for each in WORKLOADS)}")
    options.workloads = [each for each in WORKLOADS if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    options.peers = [peer for peer in PEERS if not options.peer or peer.name in options.peer]
    if options.seconds < 1 or options.rounds < 1:
        parser.error("--seconds and --rounds are at least 1")
    return options


class Run:
    """All rounds of one invocation."""

    def __init__(
        self, wrk: str, folder: Path, seconds: int, peers: Sequence[Peer], workloads: Sequence[Workload]
    ) -> None:
        self._wrk = wrk
        self._folder = folder
        self._seconds = seconds
        self._workloads = workloads
        self._peers = peers
        # Changed by every round.
        self.rows = {(peer.name, each.name): Row(peer, each, []) for each in workloads for peer in peers}
        self.versions: dict[str, str] = {}

    def round(self) -> None:
        """Every server once with every model; a server that fails is not started with that model again."""
        for (model, encoding), group in groupby(self._workloads, lambda each: (each.model, each.encoding)):
            workloads = list(group)
            for peer in self._peers:
                rows = [self.rows[peer.name, each.name] for each in workloads]
                with _faults_go_to(rows):
                    if rows := [row for row in rows if not row.fault]:
                        self._visit(peer, model, encoding, rows)

    def _visit(self, peer: Peer, model: Model, encoding: str, rows: Sequence[Row]) -> None:
        request = peer.request(model, encoding)
        body = self._folder / "body"
        body.write_bytes(request.body)
        check = functools.partial(_check, peer, model)
        server = peer.launch(self._folder, model, encoding)
        server.start()
        try:
            start_s = server.wait_for_answer(request, check)
            if peer.name not in self.versions:
                self.versions[peer.name] = peer.version(server.port)
            for row in rows:
                with _faults_go_to([row]):
                    row.samples.append(self._measure(server, peer, row.workload, body, start_s))
                    say(f"{row.workload.name:16} {peer.name:8} {_brief(row.samples[-1])}")
            server.wait_for_answer(request, check)
        finally:
            server.stop()

    def _measure(self, server: Server, peer: Peer, workload: Workload, body: Path, start_s: float) -> Sample:
        request = peer.request(workload.model, workload.encoding)
        if not workload.keep_alive:
            request = replace(request, headers={**request.headers, "Connection": "close"})
        shoot = functools.partial(load.run, self._wrk, server.port, request, body, workload.connections)
        shoot(1)  # the first seconds are unlike the others: caches, buffers, branch predictors
        before_s, machine_before_s = measure.cpu_s(server.pid), measure.machine_cpu_s()
        seen = shoot(self._seconds)
        used_s, machine_s = measure.cpu_s(server.pid) - before_s, measure.machine_cpu_s() - machine_before_s
        pss = measure.pss_bytes(server.pid)
        cpu_us = used_s * 1e6 / seen.requests
        foreign = max(0.0, machine_s - used_s - seen.cpu_s) / (seen.duration_s * NUM_CPUS)
        return Sample(seen.requests_per_s, seen.p50_us, seen.p99_us, cpu_us, pss, start_s, seen.errors, foreign)


@contextmanager
def _faults_go_to(rows: Sequence[Row]) -> Iterator[None]:
    """What could not be measured is said in the tables, and the others are measured all the same."""
    try:
        yield
    except BenchmarkError as error:
        for row in rows:
            row.fault = row.fault or str(error)
            say(f"{row.workload.name:16} {row.peer.name:8} {row.fault}")


def _check(peer: Peer, model: Model, headers: Mapping[str, str], body: bytes) -> None:
    try:
        answer = peer.answer(headers, body)
    except (LookupError, TypeError, ValueError) as error:
        raise BenchmarkError(f"unreadable answer: {body[:200].decode(errors='replace')}") from error
    verify(model, answer, _expected(model))


@functools.cache
def _expected(model: Model) -> "array[float]":
    return expected(model)


def _brief(sample: Sample) -> str:
    rate, cpu = f"{sample.requests_per_s:8.0f}/s", f"CPU {sample.cpu_us:5.0f} µs"
    return f"{rate}  p50 {sample.p50_us:6.0f} µs  p99 {sample.p99_us:6.0f} µs  {cpu}  others {sample.foreign:4.0%}"


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where a server could not be measured."""
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped on the way out
    wrk = load.find_wrk()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        run = Run(wrk, Path(folder), options.seconds, options.peers, options.workloads)
        for number in range(options.rounds):
            say(f"== round {number + 1} of {options.rounds}, {time.strftime('%H:%M:%S')}")
            run.round()
    rows = list(run.rows.values())
    where: Conditions = conditions(wrk, options.seconds, options.rounds, options.peers, run.versions)
    if options.write:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(markdown(rows, where))
        DOCUMENT.with_suffix(".svg").write_text(svg(rows))
    print(summary(rows), details(rows), sep="\n")
    return int(any(row.fault or row.median.errors for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        sys.exit(f"scripts/bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
