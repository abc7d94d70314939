"""Batchers whose processes only wait: what follows where one cannot have what it needs, or fails time and again."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from shoal.messages.from_batcher import BatcherConnected
from shoal.messages.message import on, table
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.batchers import Batchers
from shoal.supervisor.processes.children import Child, ChildProgram, prepare
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.oom_kills import OomKills
from tests.messages import Nonsense
from tests.supervisor.clock import ClockLoop
from tests.supervisor.star_rig import OPTIONS, Process

pytestmark = pytest.mark.usefixtures("subreaper")


class Started:
    """In the zygotes' place: each batcher joins at once, and ends when it is hung up on, or killed; `refusals` is what
    becoming active raises, `no_process` what its start raises, `failing` the programs of the next that do not join."""

    def __init__(self, clock: ClockLoop) -> None:
        self.clock = clock
        self.loop = EventLoop(clock)
        self.star = Star(OPTIONS, {}, self.loop)
        self.said: list[str] = []
        self.refusals: list[Exception] = []
        self.no_process: list[OSError] = []
        self.failing: list[list[str]] = []
        self.num_unsent = 0  # of so many more, a message that makes it active cannot be sent
        self.joined: list[Process] = []
        self.oom_kills = OomKills()
        self.batchers = Batchers(
            self.star, self, "@", self._on_active, self.oom_kills,  # type: ignore[arg-type]
        )  # fmt: skip
        self.running = self.loop.begin(self.batchers.run())

    def spawn(self, _kind: str, program: ChildProgram) -> Child:
        if self.no_process:
            raise self.no_process.pop(0)
        joined = Process(self.clock, self.loop, self.star.acknowledgements)
        os.set_blocking(joined.channel.fileno(), True)
        child = prepare(self.loop, program, captured=False)
        failing = self.failing.pop(0) if self.failing else None
        process = subprocess.Popen(failing or ["cat"], stdin=joined.channel.fileno(), stdout=subprocess.DEVNULL)
        child._process = process
        child.began(process.pid)
        joined.member.pid = process.pid
        self.joined.append(joined)
        joined.member.listen_only(table(on(BatcherConnected, lambda _message: self.batchers.join(joined.member))))
        joined.member.start()
        if failing is None:
            joined.channel.send(BatcherConnected())
        return child

    def _on_active(self, member: Member) -> None:
        assert self.star.batcher is None, "the star has let go of the one before"
        self.star.join_batcher(member)
        if self.num_unsent:
            self.num_unsent -= 1
            member.hang_up()
        elif self.refusals:
            self.said.append("refused")
            raise self.refusals.pop(0)
        else:
            self.said.append("active")

    def children(self) -> int:
        return sum(each.child is not None and not each.child.is_over for each in self.batchers._places)

    def see_end(self, number: int = signal.SIGKILL) -> None:
        """The active batcher is killed, and its end is seen."""
        assert self.batchers.active is not None
        ended = self.batchers.active.pid
        os.kill(ended, number)
        self.clock.until(lambda: self.batchers.active is None or self.batchers.active.pid != ended)

    def until(self, is_true: Callable[[], bool], *pauses_s: float) -> None:
        """After so many pauses, each once the process before has ended."""
        for pause_s in pauses_s:
            self.clock.until(lambda: not self.children())
            self.clock.pass_time(pause_s)
        self.clock.until(is_true)

    def close(self) -> None:
        ended = self.loop.begin(self.batchers.stop())
        self.clock.until(lambda: ended.done() and not self.children())
        for joined in self.joined:
            joined.close()


@pytest.fixture
def started(clock: ClockLoop) -> Iterator[Started]:
    made = Started(clock)
    yield made
    made.close()


def test_one_for_which_there_is_no_memory_makes_room_for_the_next(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started.refusals += [OutOfSharedMemoryError("no shared memory"), OSError(24, "Too many open files")]
    started.until(lambda: started.said == ["refused", "refused"])
    started.until(lambda: "active" in started.said, 0.5)
    assert started.said == ["refused", "refused", "active"]
    assert "cannot have its memory: no shared memory; it is tried again in 0 s" in caplog.text
    assert "cannot have its memory: no file descriptor is left, a process of the server's may have " in caplog.text


def test_one_whose_messages_cannot_be_sent_is_followed_after_a_pause(started: Started) -> None:
    started.num_unsent = 3
    begun_s = started.loop.now_s()
    started.until(lambda: started.said == ["active"], 0.0, 0.5, 1.0)
    assert started.loop.now_s() - begun_s >= 1.5


def test_one_whose_process_is_refused_is_tried_again(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    started.no_process += [OSError(11, "Try again"), OSError(11, "Try again")]
    started.clock.settle()
    assert started.said == []
    started.until(lambda: started.said == ["active"], 0.5)
    assert "no batcher can be started: this user, or its control group, may have no further process. " in caplog.text


def test_one_after_the_other_that_an_error_of_ours_ends_is_hopeless(started: Started) -> None:
    started.refusals += [ZeroDivisionError() for _ in range(4)]
    started.until(started.running.done, 0.0, 0.5, 1.0)
    assert started.said == ["refused"] * 4


def test_an_error_in_hearing_a_batcher_costs_that_one(started: Started) -> None:
    started.until(lambda: "active" in started.said)
    (process,) = started.joined
    process.channel.send(Nonsense())
    started.until(lambda: started.said == ["active", "active"])


def test_one_stands_by_and_takes_the_place_in_the_go_in_which_the_end_of_the_active_one_is_seen(
    started: Started,
) -> None:
    started.until(lambda: started.said == ["active"])
    started.batchers.start_standby()
    started.clock.until(lambda: len(started.joined) == 2)
    standby = started.joined[1].member
    started.see_end()
    assert started.batchers.active is standby
    started.clock.until(lambda: len(started.joined) == 3)
    assert started.children() == 2
    assert started.said == ["active", "active"]


def test_the_log_says_of_one_that_the_kernel_has_killed_for_memory_that_it_was(
    started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started.until(lambda: started.said == ["active"])
    pids = [started.joined[0].member.pid]
    started.see_end()
    started.until(lambda: started.said == ["active", "active"])
    pids.append(started.joined[1].member.pid)
    monkeypatch.setattr(started.oom_kills, "count", lambda: 1)
    started.see_end()
    killed = [f"the batcher (pid {pid}) was killed by signal 9 (SIGKILL)" for pid in pids]
    assert f"{killed[0]}; another takes its place" in caplog.text
    assert f"{killed[1]} by the kernel, which had run out of memory (OOM killer); another takes" in caplog.text


ENDS = ["sh", "-c", "exit 3"]


def test_one_that_ends_before_it_joins_is_in_the_log_and_followed_after_a_pause(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started.failing += [ENDS, ENDS, ENDS]
    started.until(lambda: started.said == ["active"], 0.0, 0.5, 1.0)
    ended = [each.member.pid for each in started.joined[:3]]
    for pid, pause_s in zip(ended, (0, 0.5, 1), strict=True):
        what = f"a batcher (pid {pid}) exited with code 3 before it was active; another is started in {pause_s:g} s"
        assert what in caplog.text


def test_one_after_the_other_that_ends_before_it_joins_is_hopeless_while_none_is_active(started: Started) -> None:
    started.failing += [ENDS] * 4
    started.until(started.running.done, 0.0, 0.5, 1.0)


def test_one_that_is_killed_before_it_joins_is_not_hopeless(started: Started) -> None:
    started.failing += [["sh", "-c", "kill -9 $$"]] * 6
    started.until(lambda: started.said == ["active"], 0.0, 0.5, 1.0, 2.0, 2.0, 2.0)
    assert not started.running.done()


def test_the_pause_is_short_while_none_is_active(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    started.no_process += [OSError(11, "Try again")] * 9
    started.until(lambda: started.said == ["active"], 0.5, 1.0, *[2.0] * 6)
    assert "it is tried again in 2 s" in caplog.text
    assert "it is tried again in 4 s" not in caplog.text


def test_standbys_that_end_cost_the_active_one_nothing(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    started.until(lambda: started.said == ["active"])
    started.failing += [ENDS] * 6
    started.batchers.start_standby()
    for pause_s in (0, 0.5, 1, 2, 4, 8):
        started.clock.until(lambda said=f"another is started in {pause_s:g} s": said in caplog.text)  # type: ignore[misc]
        started.clock.pass_time(pause_s)
    started.clock.until(lambda: started.batchers._standby is not None)
    assert not started.running.done()
    assert started.said == ["active"]
    started.see_end()
    assert started.said == ["active", "active"]
    started.clock.until(lambda: started.children() == 2)  # without a pause


def test_a_standby_that_sends_nonsense_is_killed_alone(started: Started) -> None:
    started.until(lambda: started.said == ["active"])
    active = started.batchers.active
    started.batchers.start_standby()
    started.clock.until(lambda: started.batchers._standby is not None)
    started.joined[1].channel.send(Nonsense())
    started.clock.until(lambda: len(started.joined) == 3)
    assert started.batchers.active is active
    assert started.said == ["active"]


def test_one_after_the_other_that_ends_by_a_fault_of_its_own_is_hopeless(started: Started) -> None:
    for number, pause_s in ((signal.SIGSEGV, 0.0), (signal.SIGABRT, 0.5), (signal.SIGBUS, 1.0)):
        started.until(lambda: started.batchers.active is not None)
        started.see_end(number)
        started.clock.pass_time(pause_s)
    started.until(lambda: started.batchers.active is not None)
    started.see_end(signal.SIGSEGV)
    started.clock.until(started.running.done)


def test_one_whose_end_is_known_before_it_joins_is_not_made_active(started: Started) -> None:
    started.failing += [ENDS, ["cat"]]
    started.clock.until(lambda: len(started.joined) == 2)
    ended, runs = started.joined
    started.batchers.join(ended.member)  # its message had come before its end
    assert started.batchers.active is None
    runs.channel.send(BatcherConnected())
    started.clock.until(lambda: started.batchers.active is runs.member)


def test_a_second_connection_of_the_active_one_is_closed(started: Started) -> None:
    started.until(lambda: started.said == ["active"])
    second = Process(started.clock, started.loop, started.star.acknowledgements)
    second.member.pid = started.joined[0].member.pid
    started.batchers.join(second.member)
    assert not second.member.is_open
    second.close()
    started.see_end()
    started.until(lambda: started.said == ["active", "active"])
