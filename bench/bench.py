"""The bench: starts servers, checks their answers, loads them in turns, reads their costs, checks again, stops them."""

import functools
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.errors import BenchmarkError
from bench.load import Generator, Target
from bench.peers import Peer
from bench.regions import registered
from bench.results import Row, Sample
from bench.server import Server
from bench.slices import Shoot, Slices, turns
from bench.workloads import BenchModel, Workload, expected, identified, verify


class Bench:
    """The state that all measurements of one invocation share."""

    def __init__(self, generator: Generator, perf: str | None, folder: Path, seconds: int) -> None:
        self.generator = generator
        self._perf = perf
        self._folder = folder
        self._seconds = seconds
        # Changed by visit.
        self.versions: dict[str, str] = {}

    def visit(self, rows: Sequence[Row]) -> None:
        """Take a sample for each of these rows, which have one model and encoding; a row with a fault gets none.

        Their servers all run at once; servers that are not loaded idle.
        """
        with ExitStack() as stack:
            running: dict[Peer, tuple[Server, float]] = {}
            for peer in dict.fromkeys(row.peer for row in rows if not row.fault):
                mine = [row for row in rows if row.peer is peer]
                with _faults_go_to(mine):
                    stack.enter_context(_faults_go_to(mine))  # also for faults while the server is stopped
                    running[peer] = stack.enter_context(self._running(peer, mine[0].workload))
            for workload in dict.fromkeys(row.workload for row in rows):
                self._measure([row for row in rows if row.workload is workload and not row.fault], running)

    @contextmanager
    def _running(self, peer: Peer, workload: Workload) -> Iterator[tuple[Server, float]]:
        """A running server, and how long it took to start; its answer is checked before the load and after it."""
        model, encoding = workload.model, workload.encoding
        request = peer.request(model, encoding)
        check: Callable[[Mapping[str, str], bytes], None] = functools.partial(check_answer, peer, model)
        server = peer.launch(self._folder, model, encoding)
        server.start()
        with ExitStack() as stack:
            stack.callback(server.stop)
            if encoding == "regions":
                check = stack.enter_context(registered(server, model))
            start_s = server.wait_for_answer(request, check, self.generator.ask)
            if peer.name not in self.versions:
                self.versions[peer.name] = peer.version(server.port)
            with peer.background(server.port):
                yield server, start_s
                server.wait_for_answer(request, check, self.generator.ask)

    def _measure(self, rows: Sequence[Row], running: Mapping[Peer, tuple[Server, float]]) -> None:
        """Measure one workload: servers in turns; a single server is loaded without a break."""
        every: list[tuple[Row, Slices]] = []
        if not rows:
            return
        for row in rows:
            with _faults_go_to([row]):
                server, start_s = running[row.peer]
                every.append((row, Slices(server.pid, start_s, self._shoot(row, server.port))))
                every[-1][1].warm_up(row.workload.warm_up_slices * row.workload.slice_s)
        slice_s = rows[0].workload.slice_s if len(rows) > 1 else self._seconds
        for row, slices in turns(every, max(1, round(self._seconds / slice_s))):
            with _faults_go_to([row]):
                if not row.fault:
                    slices.load(slice_s)
        for row, slices in every:
            with _faults_go_to([row]):
                if not row.fault:
                    row.samples.append(slices.sample(self._perf, self._folder))
                    print_line(f"{row.workload.name:16} {row.peer.name:12} {_brief(row.samples[-1])}")

    def _shoot(self, row: Row, port: int) -> Shoot:
        workload = row.workload
        request = row.peer.request(workload.model, workload.encoding)
        is_distinct = workload.encoding != "grpc" and not workload.repeats
        if is_distinct:
            request = identified(request)
        body = self._folder / f"{row.peer.name}.body"
        body.write_bytes(request.body)
        if not workload.keep_alive:
            request = replace(request, headers={**request.headers, "Connection": "close"})
        target = Target(port, request, body, workload.connections, workload.streams, is_distinct)
        return functools.partial(self.generator.shoot, target)


@contextmanager
def _faults_go_to(rows: Sequence[Row]) -> Iterator[None]:
    """Note a BenchmarkError as the fault of these rows, for the tables, and go on with the others."""
    try:
        yield
    except BenchmarkError as error:
        for row in rows:
            row.fault = row.fault or str(error)
            print_line(f"{row.workload.name:16} {row.peer.name:12} {row.fault}")


def check_answer(peer: Peer, model: BenchModel, headers: Mapping[str, str], body: bytes) -> None:
    """Raise BenchmarkError unless this is a peer's right answer."""
    try:
        answer = peer.answer(headers, body)
    except (LookupError, TypeError, ValueError) as error:
        raise BenchmarkError(f"unreadable answer: {body[:200].decode(errors='replace')}") from error
    verify(model, answer, _expected(model))


@functools.cache
def _expected(model: BenchModel) -> "array[float]":
    return expected(model)


def _brief(sample: Sample) -> str:
    rate, cpu = f"{sample.requests_per_s:8.0f}/s", f"CPU {sample.cpu_us:5.0f} µs"
    errors = f"  {sample.errors:.0f} ERRORS" if sample.errors else ""
    times = f"p50 {sample.p50_us:6.0f} µs  p99 {sample.p99_us:6.0f} µs"
    return f"{rate}  {times}  {cpu}  others {sample.foreign:4.0%}{errors}"


def print_line(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
