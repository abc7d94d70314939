"""Real child processes: their end is noticed, and what they were is known."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.children import Child, spawn


def run_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> tuple[EventLoop, Child, list[int]]:
    """A child that runs `source` as a module; the codes it ends with go into the list and stop the loop."""
    (tmp_path / "child_of_test.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loop, codes = EventLoop(), list[int]()
    child = spawn(loop, "test", ["child_of_test"], {"SHOAL_TEST": "7"})

    def ended() -> None:
        codes.append(child.exited.result())
        loop.stop()

    loop.after(child.exited, ended)
    return loop, child, codes


def test_exit_code_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, child, codes = run_module(tmp_path, monkeypatch, "import os; raise SystemExit(int(os.environ['SHOAL_TEST']))")
    loop.run()
    assert codes == [7]
    assert child.peak_rss_bytes > 1 << 20


def test_it_leads_a_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's signals to the server's group do not reach it."""
    loop, child, codes = run_module(tmp_path, monkeypatch, "import os; raise SystemExit(os.getpgid(0) != os.getpid())")
    assert os.getpgid(child.pid) == child.pid
    loop.run()
    assert codes == [0]


def test_one_may_give_way_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(niceness, "lower_priority", lambda pid: told.append(("give way", pid)))
    monkeypatch.setattr(niceness, "restore_priority", lambda pid: told.append(("join in", pid)))
    loop, child, _ = run_module(tmp_path, monkeypatch, "")
    loop.run()
    other = spawn(loop, "test", ["child_of_test"], {}, has_low_priority=True)
    loop.after(other.exited, loop.stop)
    loop.run()
    assert told == [("join in", child.pid), ("give way", other.pid)]


def test_signal_ends_it_and_a_later_one_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_descriptors: Callable[[], int]
) -> None:
    before = num_descriptors()
    loop, child, codes = run_module(tmp_path, monkeypatch, "import signal; signal.pause()")
    child.signal(signal.SIGKILL)
    loop.run()
    assert codes == [-9]
    assert num_descriptors() == before + 1  # the loop's epoll


def test_working_directory_cannot_shadow_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path / "here")
    loop, _, codes = run_module(tmp_path, monkeypatch, "import sys; raise SystemExit('' in sys.path)")
    loop.run()
    assert codes == [0]


ORPHANS = """
import os, select, signal, sys
from shoal.process import adopt_orphans
from shoal.supervisor.processes.children import reap_orphans, spawn
from shoal.supervisor.event_loop import EventLoop

def leave_orphan():
    middle = os.fork()
    if not middle:
        if os.fork():
            os._exit(0)
        signal.pause()
    os.waitpid(middle, 0)
    return int(open(f"/proc/self/task/{os.getpid()}/children").read().split()[-1])

def kill(pid):
    end = os.pidfd_open(pid)
    os.kill(pid, 9)
    select.select([end], [], [])

adopt_orphans()
assert reap_orphans()
loop, codes = EventLoop(), []
child = spawn(loop, "test", ["child_of_test"], {})
loop.after(child.exited, lambda: (codes.append(child.exited.result()), loop.stop()))
orphan = leave_orphan()
assert reap_orphans(), "nobody is dead"
kill(child.pid)
kill(orphan)
while not reap_orphans():
    loop.run()
assert codes == [-9], "one of ours is left to its own callback"
assert open(f"/proc/self/task/{os.getpid()}/children").read() == "", "nobody is left"
"""


def test_orphans_are_waited_for_and_our_own_are_not(tmp_path: Path) -> None:
    (tmp_path / "child_of_test.py").write_text("import signal; signal.pause()")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    # In a process of its own: it would wait for other tests' children, too.
    subprocess.run([sys.executable, "-c", ORPHANS], env=environment, check=True, timeout=60)
