"""The bench: servers are started, their answers checked, loaded in turns, their costs read, checked again, stopped."""

import functools
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.errors import BenchmarkError
from bench.load import Generator, Target
from bench.peers import Peer
from bench.results import Row, Sample
from bench.server import Server
from bench.slices import SLICE_S, Shoot, Slices, turns
from bench.workloads import BenchModel, Workload, expected, verify


class Bench:
    """What all measurements of one invocation share."""

    def __init__(self, generator: Generator, perf: str | None, folder: Path, seconds: int) -> None:
        self.generator = generator
        self._perf = perf
        self._folder = folder
        self._seconds = seconds
        # Changed by visit.
        self.versions: dict[str, str] = {}

    def visit(self, rows: Sequence[Row]) -> None:
        """A sample for each of these rows, all of one model and encoding; a row with a fault gets none.

        Their servers are all up at once, and servers that are not loaded idle.
        """
        with ExitStack() as stack:
            running: dict[Peer, tuple[Server, float]] = {}
            for peer in dict.fromkeys(row.peer for row in rows if not row.fault):
                mine = [row for row in rows if row.peer is peer]
                with _faults_go_to(mine):
                    stack.enter_context(_faults_go_to(mine))  # and those of its end
                    running[peer] = stack.enter_context(self._running(peer, mine[0].workload))
            for workload in dict.fromkeys(row.workload for row in rows):
                self._measure([row for row in rows if row.workload is workload and not row.fault], running)

    @contextmanager
    def _running(self, peer: Peer, workload: Workload) -> Iterator[tuple[Server, float]]:
        """The server, and how long it took to start; its answer is right before the load and after it."""
        model, encoding = workload.model, workload.encoding
        request = peer.request(model, encoding)
        check = functools.partial(_check, peer, model)
        server = peer.launch(self._folder, model, encoding)
        server.start()
        try:
            start_s = server.wait_for_answer(request, check, self.generator.ask)
            if peer.name not in self.versions:
                self.versions[peer.name] = peer.version(server.port)
            with peer.background(server.port):
                yield server, start_s
                server.wait_for_answer(request, check, self.generator.ask)
        finally:
            server.stop()

    def _measure(self, rows: Sequence[Row], running: Mapping[Peer, tuple[Server, float]]) -> None:
        """One workload: servers in turns; a server without others is loaded without a break."""
        every: list[tuple[Row, Slices]] = []
        for row in rows:
            with _faults_go_to([row]):
                server, start_s = running[row.peer]
                every.append((row, Slices(server.pid, start_s, self._shoot(row, server.port))))
                every[-1][1].warm_up()
        slice_s = SLICE_S if len(rows) > 1 else self._seconds
        for row, slices in turns(every, round(self._seconds / slice_s)):
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
        body = self._folder / f"{row.peer.name}.body"
        body.write_bytes(request.body)
        if not workload.keep_alive:
            request = replace(request, headers={**request.headers, "Connection": "close"})
        target = Target(port, request, body, workload.connections, workload.streams)
        return functools.partial(self.generator.shoot, target)


@contextmanager
def _faults_go_to(rows: Sequence[Row]) -> Iterator[None]:
    """What could not be measured is said in the tables, and the others are measured all the same."""
    try:
        yield
    except BenchmarkError as error:
        for row in rows:
            row.fault = row.fault or str(error)
            print_line(f"{row.workload.name:16} {row.peer.name:12} {row.fault}")


def _check(peer: Peer, model: BenchModel, headers: Mapping[str, str], body: bytes) -> None:
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
    """Progress."""
    print(line, file=sys.stderr, flush=True)
