"""bench/instructions.py: what perf says, whose processes they are, and a real count where it may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import instructions
from bench.errors import BenchmarkError


def test_processes_are_known_by_their_titles() -> None:
    titles = {
        "shoal http": "lane",
        "shoal grpc": "lane",
        "shoal road": "road",
        "shoal batcher": "batcher",
        "shoal worker mlp_0_0 (CPU 0-1)": "worker",
        "gunicorn: master [shoal front ends]": "rest",
        "shoal supervisor": "rest",
        "tritonserver": "rest",
    }
    assert {title: instructions.role(title) for title in titles} == titles


def test_the_line_of_perf_is_read() -> None:
    assert instructions.parse("# started on\n\n110372,,instructions:u,790650,100.00,,\n") == 110372
    assert instructions.parse("<not counted>,,instructions:u,0,100.00,,\n") == 0  # it slept
    assert instructions.parse("<not supported>,,instructions:u,0,100.00,,\n") is None
    assert instructions.parse("") is None


def test_without_perf_nothing_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert instructions.find_perf() is None


def test_a_perf_that_may_not_count_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho '<not supported>,,instructions:u,0,100.00,,' >&2\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert instructions.find_perf() is None


def test_only_what_runs_during_the_command_is_counted(tmp_path: Path) -> None:
    # Hardware decides: many virtual machines and containers have no counters to read. What is made of a count, and of a
    # perf that cannot, is tested above without any.
    perf = instructions.find_perf()
    if perf is None:
        pytest.skip("NOT CHECKED: instruction counts, since perf is missing or this machine has no counters")
    busy, calm = (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        for command in (["yes"], ["sleep", "60"])
    )
    try:
        counts = []
        for process in (busy, calm):
            # Popen returns while the kernel is still at the exec: for a moment the process has no title.
            while not Path("/proc", str(process.pid), "cmdline").read_bytes():
                assert process.poll() is None
            counter = instructions.Counter(perf, tmp_path, process.pid)
            subprocess.run([*counter.prefix, "sleep", "0.05"], check=True)
            counts.append(counter.per_request(1))
        assert counts[0]["rest"] > 1_000_000
        assert counts[1] == {"rest": 0}
    finally:
        for process in (busy, calm):
            process.kill()
            process.wait()


def test_a_count_that_is_missing_is_told(tmp_path: Path) -> None:
    # A process of its own: whatever else the tests have started has roles, too.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        counter = instructions.Counter("perf", tmp_path, process.pid)
        process.communicate(b"\n")
    (tmp_path / "rest.perf").write_text("<not supported>,,instructions:u,0,100.00,,\n")
    with pytest.raises(BenchmarkError, match="perf could not count: <not supported>"):
        counter.per_request(10)
