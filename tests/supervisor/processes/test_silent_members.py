"""Members that acknowledge nothing: stopped ones are killed, those that wait for a core, or go on later, are not."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.messages.shared import Acknowledged, Ping
from shoal.messages.to_batcher import RetireModel
from shoal.messages.to_client import ModelForgotten
from shoal.supervisor.processes.silence import Observed
from shoal.supervisor.processes.silent_members import LOOK_S, SilentMembers
from tests.scarcity import no_descriptors_left
from tests.supervisor.star_rig import StarRig


@pytest.fixture
def asleep(rig: StarRig) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that stands in for the batcher."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as asleep:
        rig.batcher.member.pid = asleep.pid
        yield asleep
        asleep.kill()


def test_one_that_sleeps_for_too_long_is_killed(rig: StarRig, caplog: pytest.LogCaptureFixture) -> None:
    """Time is what the test says, and so is what the kernel says of the processes."""
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(program) as asleep, subprocess.Popen(program) as waiting:
        rig.a.member.pid, rig.b.member.pid, rig.batcher.member.pid = asleep.pid, waiting.pid, waiting.pid
        seen = {asleep.pid: Observed(False, 0.0), waiting.pid: Observed(True, 0.0)}
        watch = SilentMembers(rig.star, lambda pid: seen[pid])
        watch.look(10.0)
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        for now_s in (11.0, 11.5, 11.9):
            watch.look(now_s)
        assert "is killed" not in caplog.text
        rig.acknowledge(rig.a)
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        watch.look(12.5)  # it has acknowledged meanwhile, and has a second for what came then
        watch.look(13.0)
        assert "is killed" not in caplog.text
        watch.look(13.5)
        assert asleep.wait() == -signal.SIGKILL
        assert caplog.text.count("is killed") == 1
        waiting.kill()


def test_one_that_takes_long_to_end_is_killed_once_a_second(rig: StarRig, caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as asleep:
        rig.a.member.pid = rig.b.member.pid = rig.batcher.member.pid = asleep.pid
        watch = SilentMembers(rig.star, lambda _pid: Observed(False, 0.0))
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        for now_s in (10.0, 11.0, 11.25, 11.5):
            watch.look(now_s)
        assert caplog.text.count(f"the front end (pid {asleep.pid}) has not moved") == 2  # that of a, and of b


def test_the_watch_outlives_a_time_without_descriptors(rig: StarRig) -> None:
    """A front end that is silent is killed once there is a descriptor for that."""
    sleeps = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(sleeps) as asleep, subprocess.Popen(sleeps) as other:
        rig.a.member.pid, rig.b.member.pid, rig.batcher.member.pid = asleep.pid, other.pid, other.pid
        watch = SilentMembers(rig.star, lambda pid: Observed(pid != asleep.pid, 0.0))
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        watch.look(10.0)
        with no_descriptors_left():
            watch.look(11.0)
        assert asleep.poll() is None
        watch.look(11.25)
        assert asleep.wait() == -signal.SIGKILL
        other.kill()


def test_a_look_that_fails_is_followed_by_another(rig: StarRig) -> None:
    looks = list[int]()

    def fails(pid: int) -> Observed:
        looks.append(pid)
        raise RuntimeError

    rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
    with pytest.raises(RuntimeError):
        SilentMembers(rig.star, fails).watch()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            rig.clock.pass_time(LOOK_S)
    assert len(looks) == 3


def test_a_batcher_that_answers_no_ping_is_killed_and_the_log_says_why(
    rig: StarRig, asleep: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    watch = SilentMembers(rig.star, lambda _pid: Observed(False, 0.0))
    watch.look(10.0)
    watch.look(10.9)
    assert "is killed" not in caplog.text
    watch.look(11.0)
    assert asleep.wait() == -signal.SIGKILL
    said = f"the batcher (pid {asleep.pid}) has not moved for 1 s; it is killed: it slept, or was stopped, and owed the"
    assert said in caplog.text


def test_a_batcher_has_a_second_for_each_ping(
    rig: StarRig, asleep: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    """The time between its answer to one ping and the next ping is not silence."""
    watch = SilentMembers(rig.star, lambda _pid: Observed(False, 0.0))
    for now_s in (10.0, 10.5):
        watch.look(now_s)
        rig.acknowledge(rig.batcher)
    for now_s in (11.4, 12.3):
        watch.look(now_s)
    assert "is killed" not in caplog.text
    watch.look(12.4)
    assert asleep.wait() == -signal.SIGKILL


def test_a_batcher_whose_answer_is_not_read_yet_is_not_silent(
    rig: StarRig, asleep: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor has waited for a core itself, between its look at the sockets and this one."""
    rig.batcher.member.start()
    watch = SilentMembers(rig.star, lambda _pid: Observed(False, 0.0))
    watch.look(10.0)
    rig.batcher.read()
    rig.batcher.channel.send(Acknowledged(rig.batcher.unacknowledged.pop()))
    watch.look(11.0)
    rig.clock.settle()
    watch.look(11.25)
    assert "is killed" not in caplog.text
    assert not rig.batcher.member.has_unread()


def test_what_a_batcher_computed_before_a_ping_is_no_silence(
    rig: StarRig, asleep: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for a core, after five seconds of imports."""
    watch = SilentMembers(rig.star, lambda _pid: Observed(True, 5.0))
    for now_s in (10.0, 11.0, 16.0):
        watch.look(now_s)
    assert "is killed" not in caplog.text


def test_a_batcher_that_acknowledges_one_message_of_many_after_the_other_moves(
    rig: StarRig, asleep: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    """A successor of one that had hundreds of models computes for more than a second before it has read them all."""
    acknowledgements, member = rig.star.acknowledgements, rig.batcher.member
    watch = SilentMembers(rig.star, lambda _pid: Observed(False, 0.0))
    acknowledgements.announce([(member, RetireModel(number)) for number in range(4)])
    rig.clock.settle()
    rig.batcher.read()
    for now_s in (10.0, 10.9, 11.8, 12.7):
        watch.look(now_s)
        acknowledgements.received(member, rig.batcher.unacknowledged.pop(0))
    assert "is killed" not in caplog.text


def test_a_batcher_is_pinged_again_once_it_has_answered_and_not_before(
    rig: StarRig, asleep: "subprocess.Popen[bytes]"
) -> None:
    """A stopped one must not find a ping for each look, nor one that has an announcement to acknowledge."""
    watch = SilentMembers(rig.star, lambda _pid: Observed(True, 0.0))
    for now_s in (10.0, 10.25, 10.5):
        watch.look(now_s)
    assert rig.batcher.heard() == [Ping()]
    rig.acknowledge(rig.batcher)
    watch.look(10.75)
    assert rig.batcher.heard() == [Ping()]
    rig.acknowledge(rig.batcher)
    rig.star.acknowledgements.announce(rig.star.to_batcher(RetireModel(3)))
    watch.look(11.0)
    assert rig.batcher.heard() == [RetireModel(3)]
