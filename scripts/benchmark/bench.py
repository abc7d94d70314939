"""The bench: a server is started, its answer checked, loaded, its cost read, its answer checked again, stopped."""

import functools
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scripts.benchmark import instructions, load, measure
from scripts.benchmark.errors import BenchmarkError
from scripts.benchmark.peers import NUM_CPUS, Peer
from scripts.benchmark.results import Row, Sample
from scripts.benchmark.server import Server
from scripts.benchmark.workloads import Model, Workload, expected, verify


class Bench:
    """What all measurements of one invocation share."""

    def __init__(self, wrk: str, perf: str | None, folder: Path, seconds: int) -> None:
        self.wrk = wrk
        self._perf = perf
        self._folder = folder
        self._seconds = seconds
        # Changed by visit.
        self.versions: dict[str, str] = {}

    def visit(self, rows: Sequence[Row]) -> None:
        """A sample for each of these rows, all of one server, model and encoding; a row with a fault gets none."""
        with _faults_go_to(rows):
            if rows := [row for row in rows if not row.fault]:
                self._visit(rows[0].peer, rows[0].workload.model, rows[0].workload.encoding, rows)

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
            with peer.company(server.port):
                for row in rows:
                    with _faults_go_to([row]):
                        row.samples.append(self._measure(server, peer, row.workload, body, start_s))
                        say(f"{row.workload.name:16} {peer.name:12} {_brief(row.samples[-1])}")
                server.wait_for_answer(request, check)
        finally:
            server.stop()

    def _measure(self, server: Server, peer: Peer, workload: Workload, body: Path, start_s: float) -> Sample:
        request = peer.request(workload.model, workload.encoding)
        if not workload.keep_alive:
            request = replace(request, headers={**request.headers, "Connection": "close"})
        shoot = functools.partial(load.run, self.wrk, server.port, request, body, workload.connections)
        shoot(1)  # the first seconds are unlike the others: caches, buffers, branch predictors
        before_s, machine_before_s = measure.cpu_s(server.pid), measure.machine_cpu_s()
        own_before_s = time.process_time()
        seen = shoot(self._seconds)
        used_s, machine_s = measure.cpu_s(server.pid) - before_s, measure.machine_cpu_s() - machine_before_s
        load_s = seen.cpu_s + time.process_time() - own_before_s
        pss = measure.pss_bytes(server.pid)
        cpu_us = used_s * 1e6 / seen.requests
        foreign = max(0.0, machine_s - used_s - load_s) / (seen.duration_s * NUM_CPUS)
        errors = seen.errors
        counted: Mapping[str, float] = {}
        if self._perf:  # a second of its own, since counting is not free
            counter = instructions.Counter(self._perf, self._folder, server.pid)
            again = shoot(1, counter.prefix)
            errors += again.errors
            counted = counter.per_request(again.requests)
        return Sample(seen.requests_per_s, seen.p50_us, seen.p99_us, cpu_us, pss, start_s, errors, foreign, counted)


@contextmanager
def _faults_go_to(rows: Sequence[Row]) -> Iterator[None]:
    """What could not be measured is said in the tables, and the others are measured all the same."""
    try:
        yield
    except BenchmarkError as error:
        for row in rows:
            row.fault = row.fault or str(error)
            say(f"{row.workload.name:16} {row.peer.name:12} {row.fault}")


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
    errors = f"  {sample.errors:.0f} ERRORS" if sample.errors else ""
    times = f"p50 {sample.p50_us:6.0f} µs  p99 {sample.p99_us:6.0f} µs"
    return f"{rate}  {times}  {cpu}  others {sample.foreign:4.0%}{errors}"


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)
