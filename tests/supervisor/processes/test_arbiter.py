"""arbiter.py: an arbiter whose loop stands still is killed, and another is started in its place."""

import logging
import os
from pathlib import Path

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes import arbiter
from shoal.supervisor.processes.arbiter import Arbiter, FrontEndRole
from shoal.supervisor.processes.zygotes import Zygotes

#: Stands in for gunicorn: it makes no pass. Those of the second one are counted by the test.
PROGRAM = """
import os, signal
assert os.read(int(os.environ["SHOAL_GO_FD"]), 1) == b"g"
signal.pause()
"""


#: Has its byte, and ignores signals as the zygote does from which it is forked.
DEAF = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
go_fd = int(os.environ["SHOAL_GO_FD"])
assert os.read(go_fd, 1) == b"g"
os.pwrite(int(os.environ["SHOAL_PROGRESS_FD"]), bytes([1]), 0)
assert os.read(go_fd, 1) == b""
"""


def test_one_that_does_not_handle_signals_yet_is_told_to_stop_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program_of_test.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(arbiter, "_GUNICORN", ("program_of_test",))
    loop = EventLoop()
    stopped = Arbiter(loop, [FrontEndRole("http", 1, {})], {}, Zygotes(loop, "", {}))
    ended = list[float]()

    def look(late_s: float) -> None:
        if stopped._child is not None and not stopped._stopping.done() and os.pread(stopped._progress_fd, 1, 0):
            assert stopped._go_fd >= 0  # else it would have ended by itself
            stopped.stop().add_done_callback(lambda _: ended.append(late_s))
        if ended:
            loop.stop()

    stopped.start()
    stopped.open()
    loop.every(0.01, look)
    loop.run()
    assert stopped._child is None


def test_the_pipe_is_closed_before_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process that begins to handle signals between the two, and has looked at the pipe then, gets neither."""
    (tmp_path / "program_of_test.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(arbiter, "_GUNICORN", ("program_of_test",))
    loop = EventLoop()
    stopped = Arbiter(loop, [FrontEndRole("http", 1, {})], {}, Zygotes(loop, "", {}))
    pipes = list[int]()

    def stop() -> None:
        child = stopped._child
        assert child is not None
        monkeypatch.setattr(child, "signal", lambda _number: pipes.append(stopped._go_fd))
        stopped.stop().add_done_callback(lambda _: loop.stop())

    stopped.start()
    stopped.open()
    loop.call_after(0.0, stop)
    loop.run()
    assert pipes == [-1]


def test_one_that_makes_no_progress_is_killed_and_one_that_does_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "program_of_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(arbiter, "_GUNICORN", ("program_of_test",))
    monkeypatch.setattr(arbiter, "LOOK_S", 0.05)
    monkeypatch.setattr(arbiter, "HUNG_S", 0.5)
    loop = EventLoop()
    watched = Arbiter(loop, [FrontEndRole("http", 1, {})], {}, Zygotes(loop, "", {}))
    pids = list[int]()
    passes = 0

    def look(_late_s: float) -> None:
        nonlocal passes
        child = watched._child
        if child is not None and child.pid not in pids:
            pids.append(child.pid)
        if len(pids) == 2:
            passes += 1
            os.pwrite(watched._progress_fd, passes.to_bytes(8, "little"), 0)
        if passes > 200:  # it has outlived the time after which the first was killed
            loop.stop()

    with caplog.at_level(logging.ERROR):
        watched.start()
        watched.open()
        loop.every(0.01, look)
        loop.run()
    first, second = pids
    assert f"(pid {first}) has not moved for 0.5 s; it is killed" in caplog.text
    assert f"(pid {second}) has not moved" not in caplog.text
    assert watched._child is not None
    watched._child.signal(9)
