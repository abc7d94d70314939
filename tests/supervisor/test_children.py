"""Real child processes: their end is noticed, told in words, and followed by a growing pause."""

import os
import signal
from pathlib import Path

import pytest

from shoal.supervisor.children import Child, backoff_s, describe_exit, spawn
from shoal.supervisor.event_loop import EventLoop


def run_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> tuple[EventLoop, Child, list[int]]:
    """A child that runs `source` as a module; the codes it ends with go into the list and stop the loop."""
    (tmp_path / "child_of_test.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loop, codes = EventLoop(), list[int]()
    child = spawn(loop, "test", ["child_of_test"], {"SHOAL_TEST": "7"})

    def ended(_child: Child, code: int) -> None:
        codes.append(code)
        loop.stop()

    child.watch(ended)
    return loop, child, codes


def test_exit_code_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _, codes = run_module(tmp_path, monkeypatch, "import os; raise SystemExit(int(os.environ['SHOAL_TEST']))")
    loop.run()
    assert codes == [7]


def test_signal_ends_it_and_a_later_one_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loop, child, codes = run_module(tmp_path, monkeypatch, "import signal; signal.pause()")
    child.signal(signal.SIGKILL)
    loop.run()
    assert codes == [-9]
    assert len(os.listdir("/proc/self/fd")) == before + 1  # the loop's epoll


def test_working_directory_cannot_shadow_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path / "here")
    loop, _, codes = run_module(tmp_path, monkeypatch, "import sys; raise SystemExit('' in sys.path)")
    loop.run()
    assert codes == [0]


@pytest.mark.parametrize(
    ("num_deaths", "pause_s"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (6, 8.0), (8, 30.0), (1000, 30.0)]
)
def test_pauses_grow_to_a_limit(num_deaths: int, pause_s: float) -> None:
    assert backoff_s(num_deaths) == pause_s


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-99, "was killed by signal 99 (unknown)"),
    ],
)
def test_ends_are_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
