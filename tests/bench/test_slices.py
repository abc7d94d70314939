"""Servers that are loaded in turns: their order, what slices come to, and the ratio of those beside each other."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench import table, workloads
from bench.bench import Bench
from bench.load import Load, Target, Wrk
from bench.peers import Peer
from bench.results import Row, Sample, slice_ratios
from bench.server import Server, ask, free_ports
from bench.slices import Slices, turns
from bench.workloads import BenchModel, Request

# Answers with what it was sent, on the port that it is told.
ECHO = """
import http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""

# Waits for an interrupt, and then says that it has taken half a second; else what it was told.
INTERRUPTED = f"""#!{sys.executable} -SE
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
seconds = int(next(word for word in sys.argv if word.startswith("-d"))[2:-1])
is_interrupted = signal.sigtimedwait({{signal.SIGINT}}, 60) is not None
print(f"figures requests=10 duration_us={{500_000 if is_interrupted else seconds * 1_000_000}} p50_us=1 p99_us=2 "
      "connect=0 read=0 write=0 status=0 timeout=0")
"""


BINARY_C1 = next(each for each in workloads.WORKLOADS if each.name == "binary-c1")


def sample(*slices: float) -> Sample:
    """A round's figures."""
    return Sample(sum(slices) / len(slices), 1500, 9000, 100, 1 << 20, 1.0, 0, 0.04, slices=slices)


class Asker:
    """A generator that asks twice, and notes whom and for how long."""

    title = "asker"

    def __init__(self) -> None:
        self.shot: list[tuple[int, float]] = []

    def ask(self, port: int, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        """As Generator."""
        return ask(port, request)

    def shoot(self, target: Target, seconds: float, rate: float | None = None, prefix: Sequence[str] = ()) -> Load:
        """As Generator."""
        self.shot.append((target.port, seconds))
        for _ in range(2):
            assert self.ask(target.port, target.request)[2] == target.body.read_bytes()
        return Load(2, seconds, 10, 20, 0.0, 0)


def peer(name: str, port: int, program: str = ECHO) -> Peer:
    """It speaks the plain protocol, and `program` is the server."""

    def launch(folder: Path, _model: BenchModel, _encoding: str) -> Server:
        return Server([sys.executable, "-c", program, str(port)], os.environ, port, folder / f"{name}.log")

    return Peer(name, name, name, launch, workloads.plain_request, workloads.plain_answer, lambda _port: "1.0", "")


def test_turns_go_there_and_back() -> None:
    assert "".join(turns("ABC", 3)) == "ABCCBAABC"
    assert not list(turns("ABC", 0))


def test_slices_add_up() -> None:
    loads = [Load(10, 1, 100, 900, 0.0, 0), Load(100, 1.0, 500, 1000, 0.0, 3), Load(40, 1.0, 300, 700, 0.0, 0)]
    asked: list[tuple[float, float | None]] = []

    def shoot(seconds: float, rate: float | None, _prefix: Sequence[str]) -> Load:
        asked.append((seconds, rate))
        return loads[len(asked) - 1]

    slices = Slices(os.getpid(), 2.5, shoot)
    slices.warm_up(1)
    for _ in range(2):
        slices.load(0.5)
    told = slices.sample(None, Path())
    assert asked == [(1, None), (0.5, 10.0), (0.5, 10.0)]
    assert (told.requests_per_s, told.slices) == (70.0, (100.0, 40.0))
    assert (told.p50_us, told.p99_us, told.errors, told.start_s) == (400, 850, 3, 2.5)
    assert told.pss_bytes > 0


def test_a_ratio_is_that_of_neighbouring_slices() -> None:
    # Ours is twice as fast in every slice, while the machine is four times as fast in one as in another.
    ours, theirs = sample(800, 3200, 1600, 1600), sample(400, 1600, 800, 400)
    assert slice_ratios(ours, theirs) == (2.0, 2.0, 2.5)
    assert slice_ratios(ours, sample(400)) is None
    assert slice_ratios(ours, sample(400, 0, 800, 0)) == (2.0, 2.0, 2.0)
    rows = [Row(peer(name, 1), BINARY_C1, [each]) for name, each in (("shoal", ours), ("other", theirs))]
    assert "| 1,800 | 2.00 (2.00–2.50) | 100 | 1.00 |" in table.summary(rows)


def test_slices_of_all_rounds_count() -> None:
    row = Row(peer("shoal", 1), BINARY_C1, [sample(1, 2), sample(3)])
    assert row.median.slices == (1, 2, 3)


def test_servers_are_up_together_and_are_loaded_in_turns(tmp_path: Path) -> None:
    first, second, third = free_ports(3)
    peers = [peer("one", first), peer("two", second), peer("three", third, "raise SystemExit('no such model')")]
    rows = [Row(each, BINARY_C1, []) for each in peers]
    generator = Asker()
    bench = Bench(generator, None, tmp_path, 2)
    bench.visit(rows)
    there_and_back = [(port, BINARY_C1.slice_s) for port in (first, second, second, first)] * 2
    assert generator.shot == [(first, 1), (second, 1), *there_and_back]
    assert [len(row.samples) for row in rows] == [1, 1, 0]
    assert [bool(row.fault) for row in rows] == [False, False, True]
    assert rows[2].fault.endswith("no such model")
    assert bench.versions == {"one": "1.0", "two": "1.0"}


def test_who_is_alone_is_loaded_without_a_break(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    generator = Asker()
    row = Row(peer("one", port), BINARY_C1, [])
    Bench(generator, None, tmp_path, 2).visit([row])
    assert generator.shot == [(port, 1), (port, 2)]
    assert row.samples[0].slices == (1.0,)


def test_wrk_is_interrupted_in_the_middle_of_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrk = tmp_path / "wrk"
    wrk.write_text(INTERRUPTED)
    wrk.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    load = Wrk().shoot(Target(1, Request("/", {}, b""), tmp_path / "body", 1), 1.5)
    assert load.duration_s == 0.5
