"""The chapter on TorchServe: its targets and limits, its command line, and what servers are asked."""

import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from array import array
from pathlib import Path

import pytest

from bench import measure, targets, torchserve_chapter, torchserve_peers
from bench.__main__ import parse_arguments
from bench.document import CHAPTERS, Conditions, put
from bench.errors import BenchmarkError
from bench.results import Row, Sample
from bench.server import Server
from bench.torchserve_chapter import PEERS, TARGETS, WORKLOADS
from bench.torchserve_peers import SHOAL, TORCHSERVE
from bench.worker_deaths import Moments, kill_worker
from bench.workloads import DOUBLED, NOOP, BenchModel, Request, expected, verify
from shoal.repository.torchserve.archive import unpack

MIB = 1 << 20


def sample(requests_per_s: float, cpu_us: float) -> Sample:
    """A round's figures."""
    return Sample(requests_per_s, 1000, 9000, cpu_us, MIB, 1.0, 0, 0.04)


def rows() -> list[Row]:
    """Both servers, two rounds each."""
    noop, doubled = WORKLOADS
    return [
        Row(SHOAL, noop, [sample(9000, 60), sample(7000, 90)]),
        Row(SHOAL, doubled, [sample(8000, 70)]),
        Row(TORCHSERVE, noop, [sample(1000, 400), sample(1000, 400)]),
        Row(TORCHSERVE, doubled, [], "it ended"),
    ]


def test_a_target_is_met_where_every_round_meets_it() -> None:
    title = WORKLOADS[0].title
    assert targets.table(TARGETS, rows(), TORCHSERVE).splitlines()[2:] == [
        f"| {title} | requests/s | 8,000 | 1,000 | 8.00 | ≥ 8 × | in some rounds |",
        f"| {title} | CPU µs/request | 75 | 400 | 0.19 | ≤ 0.2 × | in some rounds |",
    ]


def test_moments_are_those_of_the_median_start_and_every_start_keeps_the_limit() -> None:
    ours = [
        Moments(first_s, 28 * MIB, 11 * MIB, backs_s)
        for first_s, backs_s in ((1.5, (0.02, 0.05, 0.3)), (2.5, (0.04, 0.2, 0.2)), (1.0, (0.03,)))
    ]
    theirs = [Moments(8.0, 550 * MIB, 300 * MIB, (2.8,))]
    assert torchserve_chapter.moments_table({"shoal": ours, "torchserve": theirs}).splitlines()[2:] == [
        "| first answer | 1.50 s | 8.00 s | ≤ 2 s | in some rounds |",
        "| a crashed worker is back | 50 ms (20–300) | 2,800 ms (2,800–2,800) | ≤ 100 ms | in some rounds |",
        "| worker | 28 (11) MiB | 550 (300) MiB | ≤ 30 MiB | yes |",
    ]
    assert "| worker | – | – | ≤ 30 MiB | not measured |" in torchserve_chapter.moments_table({})


def test_the_chapter_names_its_conditions_and_has_a_place() -> None:
    where = Conditions(4, 3, ["A CPU, 2 cores"], "wrk 4.1.0", [("Shoal", "shoal 0.1.0", "About Shoal.")])
    text = torchserve_chapter.markdown(rows(), {"shoal": [], "torchserve": []}, where)
    for part in ("3 rounds of 4 s", "- A CPU, 2 cores\n", "(wrk 4.1.0, one", "loaded for 6 s", "could not be measured"):
        assert part in text
    document = put(put("", "itself", "its own"), "torchserve", text)
    assert document.index("chapter: torchserve") < document.index("chapter: itself")
    assert "torchserve" in CHAPTERS


def test_torchserve_is_a_comparison_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_arguments(["--peer", "torchserve", "--workload", "ts-noop*"])
    assert [each.name for each in options.workloads] == ["ts-noop-c16"]
    assert options.peers == [*PEERS]
    assert [each.name for each in parse_arguments(["--peer=torchserve", "--quick"]).workloads] == [
        each.name for each in WORKLOADS
    ]
    assert TORCHSERVE not in parse_arguments([]).peers
    for more in ("--grpc", "--peer=triton", "--flat"):
        with pytest.raises(SystemExit):
            parse_arguments(["--peer=torchserve", more])
    assert "a comparison of its own" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "encoding"), [(NOOP, "body"), (DOUBLED, "json")])
def test_an_archive_of_the_bench_answers_as_is_checked(model: BenchModel, encoding: str, tmp_path: Path) -> None:
    path = torchserve_peers.write_archive(tmp_path, model)
    assert zipfile.is_zipfile(path)
    with path.open("rb") as archive:
        (tmp_path / "unpacked").mkdir()
        unpack(archive, tmp_path / "unpacked")
    scope: dict[str, object] = {}
    exec((tmp_path / "unpacked" / "handler.py").read_text(), scope)
    request = torchserve_peers.request(model, encoding)
    body = json.loads(request.body) if encoding == "json" else bytearray(request.body)
    (element,) = scope["handle"]([{"body": body}], None)  # type: ignore[operator]
    sent = element if encoding == "body" else json.dumps(element, indent=2).encode()
    verify(model, torchserve_peers.answer({}, bytes(sent)), expected(model))
    with pytest.raises(BenchmarkError, match="wrong answer"):
        verify(model, array("f", [1.0]), expected(model))


def test_a_killed_process_is_waited_for_and_a_server_without_an_answer_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        memory = measure.memory(os.getpid())
        assert memory["Rss"] >= memory["Pss"] > MIB
        reaper = threading.Thread(target=worker.wait)
        reaper.start()
        monkeypatch.setattr("bench.worker_deaths.BACK_DEADLINE_S", 0.2)
        with pytest.raises(BenchmarkError, match="no answer"):
            kill_worker(Server(["true"], os.environ, 1, tmp_path / "log"), Request("/", {}, b""), worker.pid)
        reaper.join()
        assert worker.returncode == -signal.SIGKILL
