"""Batchers whose processes only wait: what follows where one cannot have what it needs, or fails time and again."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes import batchers as batchers_module
from shoal.supervisor.processes.batchers import Batchers
from shoal.supervisor.processes.children import Child, Program, prepare
from shoal.supervisor.processes.members import Acknowledgements, Member
from shoal.supervisor.processes.silence import Observed
from tests.messages import Nonsense
from tests.supervisor.sky import Process

pytestmark = pytest.mark.usefixtures("subreaper")


class Started:
    """In the zygotes' place, with one batcher at a time: each joins at once, and ends when it is hung up on, or killed;
    `refusals` is what becoming active raises."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.said: list[str] = []
        self.refusals: list[Exception] = []
        self._joined: list[tuple[Process, subprocess.Popen[bytes]]] = []
        self.batchers = Batchers(
            self.loop, self, "@", Acknowledgements(self.loop),  # type: ignore[arg-type]
            on_active=self._on_active,
            on_inactive=lambda _member: self.said.append("inactive"),
            on_hopeless=lambda: self.said.append("hopeless"),
        )  # fmt: skip

    def spawn(self, _kind: str, program: Program) -> Child:
        child = prepare(self.loop, program, captured=False)
        process = subprocess.Popen(["sh", "-c", "read end"], stdin=subprocess.PIPE)
        child._process = process
        child.began(process.pid)
        self.loop.call_after(0, lambda: self._join(process))
        return child

    def _join(self, process: "subprocess.Popen[bytes]") -> None:
        joined = Process(self.loop, Acknowledgements(self.loop))
        joined.member.pid = process.pid
        assert process.stdin is not None
        joined.member.on_gone = process.stdin.close
        self._joined.append((joined, process))
        self.batchers.join(joined.member)

    def _on_active(self, _member: Member) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.said.append("active")

    def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            self.loop.call_after(0.001, self.loop.stop)
            self.loop.run()

    def close(self) -> None:
        self.batchers.stop()
        self.until(lambda: not self.batchers._children)
        for joined, _ in self._joined:
            joined.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setattr(batchers_module, "NUM_BATCHERS", 1)
    made = Started()
    yield made
    made.close()


def test_one_for_which_there_is_no_memory_makes_room_for_the_next(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started.refusals += [OutOfSharedMemoryError("no shared memory"), OSError(24, "Too many open files")]
    started.batchers.start()
    started.until(lambda: "active" in started.said)
    assert started.said == ["inactive", "inactive", "active"]
    assert "cannot have its memory: no shared memory; it is tried again in 0 s" in caplog.text
    assert "cannot have its memory: [Errno 24] Too many open files; it is tried again in 0.5 s" in caplog.text


def test_one_after_the_other_that_an_error_of_ours_ends_is_hopeless(started: Started) -> None:
    started.refusals += [ZeroDivisionError() for _ in range(4)]
    started.batchers.start()
    started.until(lambda: "hopeless" in started.said)
    assert started.said.count("active") == 0


def test_an_error_in_hearing_a_batcher_costs_that_one(started: Started) -> None:
    started.batchers.start()
    started.until(lambda: "active" in started.said)
    process, _ = started._joined[0]
    process.member.start()
    process.channel.send(Nonsense())
    started.until(lambda: started.said.count("active") == 2)
    assert started.said == ["active", "inactive", "active"]


def test_what_one_computed_before_it_was_active_is_no_silence(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a core, after five seconds of imports."""
    waiting = Observed(True, 5.0)
    monkeypatch.setattr(batchers_module, "observe", lambda _pid: waiting)
    started.batchers.start()
    started.until(lambda: "active" in started.said)
    silent_s = started.batchers._silence.look(started.loop.now_s() + 0.5, waiting)
    assert silent_s == 0


def test_there_are_never_more_than_there_may_be(started: Started) -> None:
    for _ in range(3):
        started.batchers.start()
    assert len(started.batchers._children) == 1
