"""arbiter.py: an arbiter whose loop stands still is killed, and another is started in its place."""

import errno
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal.supervisor.event_loop import EventLoop, Future, shared
from shoal.supervisor.processes import arbiter
from shoal.supervisor.processes.arbiter import Arbiter, FrontEndRole
from shoal.supervisor.processes.children import Child
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S
from shoal.supervisor.processes.silence import Observed
from shoal.supervisor.processes.zygotes import Zygotes
from tests.supervisor.clock import ClockLoop

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


class Refusing(Zygotes):
    """Zygotes of a system that refuses processes."""

    num_refused = 0

    def spawn(self, *_arguments: Any, **_options: Any) -> Child:
        self.num_refused += 1
        raise OSError(errno.EAGAIN, "Try again")


def test_starts_that_the_system_refuses_to_a_server_that_has_long_run_are_followed_by_longer_and_longer_pauses(
    clock: ClockLoop,
) -> None:
    loop = EventLoop(clock)
    zygotes = Refusing(loop, "", {})
    clock.pass_time(HEALTHY_AFTER_S)
    refused = Arbiter(loop, [FrontEndRole("http", 1, {})], {}, zygotes)
    refused.start()
    for pause_s in (0.0, 0.5, 1.0, 2.0, 2.0):
        clock.pass_time(pause_s)
    assert zygotes.num_refused == 6
    clock.run(_done(refused.stop()))
    os.close(refused._progress_fd)


def test_one_with_which_an_error_of_ours_is_met_is_killed_before_the_next_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program_of_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(arbiter, "_GUNICORN", ("program_of_test",))
    monkeypatch.setattr(arbiter, "LOOK_S", 0.05)
    loop = EventLoop()
    watched = Arbiter(loop, [FrontEndRole("http", 1, {})], {}, Zygotes(loop, "", {}))
    children = list[Child]()

    def fails(_pid: int) -> Observed:
        assert watched._child is not None
        children.append(watched._child)
        monkeypatch.setattr(arbiter, "observe", lambda _pid: None)
        raise RuntimeError

    def look(_late_s: float) -> None:
        if children and children[0].is_over and watched._child is not None and watched._child.pid:
            watched._child.signal(signal.SIGKILL)
            loop.stop()

    monkeypatch.setattr(arbiter, "observe", fails)
    watched.start()
    watched.open()
    loop.every(0.01, look)
    loop.call_after(20.0, loop.stop)
    loop.run()
    (first,) = children
    assert first.is_over


async def _done(future: Future[None]) -> None:
    await shared(future)
