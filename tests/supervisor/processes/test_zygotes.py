"""Zygotes with real processes: each requested process starts, forked or exec'd, and a dead zygote is replaced."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.control import Channel
from shoal.messages.message import Message
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes import zygotes as zygotes_module
from shoal.supervisor.processes.children import Child, ChildProgram
from shoal.supervisor.processes.restarts import backoff_s
from shoal.supervisor.processes.zygotes import BASE, BASE_S, FORK_S, IMPORT_S, Zygotes
from tests.end_to_end.server import wait_until
from tests.open_sockets import sockets
from tests.supervisor.clock import ClockLoop

#: Its exit code says how it began.
SOURCE = """
import os, sys
FORKED, EXECUTED = 3, 4
def main():
    print("out", os.environ["SHOAL_TEST"])
    print("err", file=sys.stderr)
    if os.environ["SHOAL_TEST"] == "killed":
        os.kill(os.getpid(), 9)
    return EXECUTED if __name__ == "__main__" else FORKED
if __name__ == "__main__":
    sys.exit(main())
"""
FORKED, EXECUTED = 3, 4

pytestmark = pytest.mark.usefixtures("subreaper")


def children() -> list[int]:
    """The pids of this process's children, other tests' servers among them."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


class Harness:
    """A loop, zygotes that know one module, and what became of the children."""

    def __init__(self, clock: ClockLoop) -> None:
        self.clock = clock
        self.loop = EventLoop(clock)
        self.zygotes = Zygotes(self.loop, "@test", {"test": ("child_of_zygote",)})
        self._codes: list[int] = []
        self._others = set(children())

    def spawn(
        self, kind: str = "test", variable: str = "7", *, captured: bool = False, has_low_priority: bool = False
    ) -> Child:
        program = ChildProgram("test", ["child_of_zygote"], {"SHOAL_TEST": variable}, has_low_priority=has_low_priority)
        child = self.zygotes.spawn(kind, program, captured=captured)
        self.loop.after(child.exited, lambda: self._codes.append(child.exited.result()))
        return child

    def children(self) -> list[int]:
        """The pids of all children, dead ones included."""
        return [pid for pid in children() if pid not in self._others]

    def zygote_pid(self) -> int:
        """The pid of the zygote, which is the only child."""
        (pid,) = self.children()
        return pid

    def run(self) -> int:
        """Until the next child has ended; its return code."""
        self.clock.until(lambda: bool(self._codes))
        return self._codes.pop(0)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockLoop) -> Iterator[Harness]:
    (tmp_path / "child_of_zygote.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    harness = Harness(clock)
    yield harness
    harness.zygotes.stop()
    try:
        harness.clock.until(lambda: not harness.children())
    except AssertionError as error:
        left = [Path(f"/proc/{pid}/status").read_text()[:200] for pid in harness.children()]
        raise AssertionError(f"children are left: {left}") from error


def test_children_are_forked_watched_and_accounted_for(harness: Harness, capfd: pytest.CaptureFixture[str]) -> None:
    child = harness.spawn()
    assert child.pid == 0  # nobody has waited for it
    assert harness.run() == FORKED
    assert child.pid > 0
    assert child.peak_rss_bytes > 1 << 20
    assert capfd.readouterr() == ("out 7\n", "err\n")


def test_what_a_killed_child_wrote_is_captured(harness: Harness) -> None:
    child = harness.spawn(variable="killed", captured=True)
    assert harness.run() == -signal.SIGKILL
    assert [pipe.read() for pipe in child.outputs] == [b"out killed\n", b"err\n"]
    for pipe in child.outputs:
        pipe.close()


def test_nothing_is_left_open(harness: Harness, num_descriptors: Callable[[], int]) -> None:
    harness.spawn()
    harness.run()
    before = num_descriptors()
    for _ in range(3):
        harness.spawn()
        assert harness.run() == FORKED
    assert num_descriptors() == before


def test_a_signal_before_the_beginning_is_the_end(harness: Harness) -> None:
    harness.spawn().signal(signal.SIGKILL)
    assert harness.run() == -signal.SIGKILL


def test_a_kind_without_a_zygote_is_execd(harness: Harness) -> None:
    harness.spawn("python")
    assert harness.run() == EXECUTED
    assert not harness.children()


def test_a_dead_zygote_is_replaced_and_meanwhile_children_are_execd(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[tuple[float, Callable[[], None]]] = []

    def call_after(delay_s: float, callback: Callable[[], None]) -> None:
        if callback.__name__ == "start":
            pauses.append((delay_s, callback))  # it is over when the test says so
        else:
            EventLoop.call_after(harness.loop, delay_s, callback)

    monkeypatch.setattr(harness.loop, "call_after", call_after)
    harness.spawn()
    assert harness.run() == FORKED
    for num_deaths in (1, 2):
        os.kill(harness.zygote_pid(), signal.SIGKILL)
        harness.clock.until(lambda: bool(pauses))
        pause_s, start = pauses.pop()
        assert pause_s == backoff_s(num_deaths)
        assert f"it is started again in {pause_s:g} s" in caplog.text
        harness.spawn()
        assert harness.run() == EXECUTED
        start()
        harness.spawn()
        assert harness.run() == FORKED


def test_a_process_that_waits_for_a_zygote_that_dies_is_execd(harness: Harness) -> None:
    for _ in range(2):
        harness.spawn()
    os.kill(harness.zygote_pid(), signal.SIGKILL)  # it is still importing
    assert [harness.run(), harness.run()] == [EXECUTED, EXECUTED]


def test_a_zygote_that_stands_still_is_killed_and_the_child_execd(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    stopped = harness.zygote_pid()
    os.kill(stopped, signal.SIGSTOP)
    harness.spawn()
    harness.clock.pass_time(FORK_S - 1)
    assert caplog.text == ""
    harness.clock.pass_time(1)
    assert harness.run() == EXECUTED
    harness.clock.until(lambda: f"(pid {stopped}) was killed by signal 9" in caplog.text)
    assert "has not forked within 10 s; it is killed" in caplog.text


def test_a_child_whose_turn_has_not_come_is_waited_for(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "pass")
    passes = os.open(tmp_path / "pass", os.O_RDWR)
    gate = f"""
import os
passes = os.open({str(tmp_path / "pass")!r}, os.O_RDWR)
os.register_at_fork(before=lambda: os.read(passes, 1))
"""
    (tmp_path / "child_of_zygote.py").write_text(gate + SOURCE)
    harness.spawn()
    os.write(passes, b"..")  # the zygote's fork, and that of the middle
    assert harness.run() == FORKED
    for _ in range(2):
        harness.spawn()
    for _ in range(2):
        harness.clock.pass_time(FORK_S - 1)  # for the second, too long since the order
        os.write(passes, b"..")
        assert harness.run() == FORKED
    os.close(passes)
    assert caplog.text == ""


def test_a_zygote_that_never_gets_ready_is_killed(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "child_of_zygote.py").write_text(
        f"import signal, sys\nif __name__ != '__main__': signal.pause()\nsys.exit({EXECUTED})"
    )
    harness.spawn()
    harness.clock.pass_time(IMPORT_S)
    assert harness.run() == EXECUTED


def test_the_processes_of_an_unfit_zygote_are_execd(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "child_of_zygote.py").write_text("import sys\nif __name__ != '__main__': import nothing\nsys.exit(9)")
    for _ in range(2):
        harness.spawn()
        assert harness.run() == 9
    harness.clock.until(lambda: not harness.children())
    why = "its imports failed with ModuleNotFoundError: No module named 'nothing'"
    assert [record.getMessage() for record in caplog.records] == [f"zygote 'test': {why}; its processes are exec'd"]


def test_nothing_is_open_once_they_are_told_to_stop(harness: Harness, num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    harness.spawn()
    assert harness.run() == FORKED
    harness.zygotes.stop()  # its death is on the way, and nobody may be left to hear of it
    assert num_descriptors() == before + 1  # the pidfd, which the loop has


def test_after_the_stop_no_zygote_follows(harness: Harness) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    harness.zygotes.stop()
    harness.clock.until(lambda: not harness.children())
    harness.spawn()
    assert harness.run() == EXECUTED


def test_a_base_that_has_ended_is_not_missed(clock: ClockLoop, harness: Harness) -> None:
    harness.zygotes = Zygotes(harness.loop, "@test", {BASE: (), "test": ("child_of_zygote",)})
    harness.zygotes.start()
    (base,) = harness.children()
    harness.spawn()
    assert harness.run() == FORKED
    (zygote,) = [pid for pid in harness.children() if pid != base]
    harness.zygotes.end_base()
    clock.pass_time(BASE_S)
    clock.until(lambda: harness.children() == [zygote])
    harness.spawn()
    assert harness.run() == FORKED
    os.kill(zygote, signal.SIGKILL)  # its successor has no base, and imports all by itself
    clock.until(lambda: zygote not in harness.children())
    clock.pass_time(backoff_s(1))
    clock.until(lambda: len(harness.children()) == 1)
    harness.spawn()
    assert harness.run() == FORKED


def test_what_a_base_would_fork_another_zygote_forks_when_it_ends(clock: ClockLoop, harness: Harness) -> None:
    harness.zygotes = Zygotes(harness.loop, "@test", {BASE: ("child_of_zygote",), "test": ("child_of_zygote",)})
    harness.zygotes.start()
    (base,) = harness.children()
    harness.spawn(BASE)
    assert harness.run() == FORKED
    harness.spawn()
    assert harness.run() == FORKED
    (zygote,) = [pid for pid in harness.children() if pid != base]
    harness.zygotes.end_base()
    os.kill(base, signal.SIGSTOP)  # so that it forks nothing: the other forks what is asked for from now on
    harness.spawn(BASE)
    assert harness.run() == FORKED
    clock.pass_time(BASE_S)
    clock.until(lambda: harness.children() == [zygote])
    harness.spawn(BASE)
    assert harness.run() == FORKED


@pytest.mark.parametrize("kinds", [(), ("pytorch",)])
def test_a_base_that_no_other_zygote_can_stand_for_does_not_end(
    clock: ClockLoop, harness: Harness, kinds: tuple[str, ...]
) -> None:
    harness.zygotes = Zygotes(harness.loop, "@test", dict.fromkeys((BASE, *kinds), ("child_of_zygote",)))
    harness.zygotes.start()
    (base,) = harness.children()
    for kind in (*kinds, BASE):
        harness.spawn(kind)
        assert harness.run() == FORKED
    harness.zygotes.end_base()
    clock.pass_time(BASE_S)
    harness.spawn(BASE)
    assert harness.run() == FORKED
    assert base in harness.children()


@pytest.fixture
def base(harness: Harness) -> int:
    """The pid of a base zygote, which forks that of the kind "test" when one is needed."""
    harness.zygotes = Zygotes(harness.loop, "@test", {BASE: (), "test": ("child_of_zygote",)})
    harness.zygotes.start()
    return harness.zygote_pid()


def test_a_base_that_dies_before_it_has_forked_a_zygote_leaves_the_zygote_to_an_exec(
    harness: Harness, base: int
) -> None:
    os.kill(base, signal.SIGSTOP)  # so that it forks nothing
    harness.spawn()
    os.kill(base, signal.SIGKILL)
    assert harness.run() == FORKED  # by the zygote, which was exec'd
    assert base not in harness.children()


def test_a_base_that_stands_still_is_killed_and_the_zygote_execd(harness: Harness, base: int) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    (zygote,) = [pid for pid in harness.children() if pid != base]
    os.kill(base, signal.SIGSTOP)
    harness.spawn()  # the kind's own zygote forks it, whatever has become of the base
    assert harness.run() == FORKED
    os.kill(zygote, signal.SIGKILL)
    harness.clock.until(lambda: zygote not in harness.children())
    harness.clock.pass_time(backoff_s(1))
    harness.spawn()  # waits for a zygote that the base does not fork
    harness.clock.pass_time(FORK_S)
    harness.clock.until(lambda: base not in harness.children())
    assert harness.run() == FORKED


def test_a_base_that_the_system_refuses_a_fork_leaves_the_process_to_an_exec(
    harness: Harness, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "without_memory.py").write_text(
        "import errno, os\ndef refuse(): raise OSError(errno.ENOMEM, 'Cannot allocate memory')\nos.fork = refuse\n"
    )
    harness.zygotes = Zygotes(harness.loop, "@test", {BASE: ("without_memory",), "test": ("child_of_zygote",)})
    harness.zygotes.start()
    harness.spawn()
    assert harness.run() == FORKED  # by a zygote that was exec'd
    assert "a zygote cannot fork" in capfd.readouterr().err


def test_processes_that_a_base_forks_have_no_descriptor_of_its_own(harness: Harness, base: int) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    (zygote,) = [pid for pid in harness.children() if pid != base]
    # A zygote closes what came with an order once it has forked, of which nothing is told to others.
    wait_until(lambda: (len(sockets(base)), len(sockets(zygote))) == (1, 1))
    assert sockets(base) != sockets(zygote)


def test_processes_started_while_it_serves_have_low_priority(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(niceness, "lower_priority", lambda pid: told.append(("give way", pid)))
    monkeypatch.setattr(niceness, "restore_priority", lambda pid: told.append(("join in", pid)))
    monkeypatch.setattr(zygotes_module, "_WORKER", "child_of_zygote")  # its zygote is one for workers
    early = harness.spawn(has_low_priority=True)
    assert harness.run() == FORKED
    zygote = harness.zygote_pid()
    assert told == [("join in", zygote), ("join in", early.pid)]
    harness.zygotes.lower_priority()
    late = harness.spawn(has_low_priority=True)
    assert harness.run() == FORKED
    assert told[2:] == [("give way", zygote), ("give way", late.pid)]
    execd = harness.spawn("another", has_low_priority=True)
    assert harness.run() == EXECUTED
    assert told[4:] == [("give way", execd.pid)]
    urgent = harness.spawn()  # the zygote forks it as one that serves would
    assert harness.run() == FORKED
    assert told[5:] == [("join in", zygote), ("give way", zygote), ("join in", urgent.pid)]
    os.kill(zygote, signal.SIGKILL)
    harness.clock.until(lambda: len(told) == 9)
    assert told[8] == ("give way", harness.zygote_pid())


def test_a_zygote_keeps_its_priority_until_the_last_urgent_child_is_forked(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(niceness, "lower_priority", lambda pid: told.append(("lower", pid)))
    monkeypatch.setattr(niceness, "restore_priority", lambda pid: told.append(("restore", pid)))
    monkeypatch.setattr(zygotes_module, "_WORKER", "child_of_zygote")  # its zygote is one for workers
    harness.spawn()
    assert harness.run() == FORKED
    zygote = harness.zygote_pid()
    harness.zygotes.lower_priority()
    told.clear()
    for _ in range(2):
        harness.spawn()
    assert [harness.run(), harness.run()] == [FORKED, FORKED]
    assert [what for what, pid in told if pid == zygote] == ["restore", "restore", "lower"]


def test_a_forked_child_that_cannot_be_watched_is_over_and_no_other_error_follows(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, num_descriptors: Callable[[], int]
) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    before, zygote = num_descriptors(), harness.zygote_pid()

    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = harness.zygotes.spawn("test", ChildProgram("test", ["child_of_zygote"], {"SHOAL_TEST": "7"}))
    harness.clock.until(lambda: child.is_over)
    assert isinstance(child.exited.exception(), OSError)
    assert num_descriptors() == before
    (forked,) = [pid for pid in harness.children() if pid != zygote]
    _, status = os.waitpid(forked, 0)
    assert os.waitstatus_to_exitcode(status) == 1  # nothing was begun


def test_a_child_that_ends_before_it_has_all_descriptors_has_ended_like_any_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, num_descriptors: Callable[[], int]
) -> None:
    harness.spawn()
    assert harness.run() == FORKED
    before = num_descriptors()
    began = Child.began

    def end_early(child: Child, pid: int) -> None:
        began(child, pid)
        child.passed["SHOAL_FDS"] = [*child.passed["SHOAL_FDS"], os.dup(1)]
        os.kill(pid, signal.SIGSTOP)  # so that it has not read the first descriptor when it ends
        monkeypatch.setattr(Channel, "send", kill_after_first)

    def kill_after_first(channel: Channel, message: Message, seq: int = 0) -> None:
        send(channel, message, seq)
        monkeypatch.setattr(Channel, "send", send)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    send = Channel.send
    monkeypatch.setattr(Child, "began", end_early)
    program = ChildProgram("test", ["child_of_zygote"], {"SHOAL_TEST": "7"}, {"SHOAL_FDS": [1]})
    child = harness.zygotes.spawn("test", program)
    harness.clock.until(child.exited.done)
    assert child.exited.result() == -signal.SIGKILL
    assert num_descriptors() == before
