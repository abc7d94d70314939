"""Front ends that acknowledge nothing: stopped ones are killed, those that wait for a core, or go on later, are not."""

import signal
import subprocess
import sys

import pytest

from shoal.messages.to_client import ModelForgotten
from shoal.supervisor.processes.silence import Observed
from shoal.supervisor.processes.silent_front_ends import LOOK_S, SilentFrontEnds
from tests.scarcity import no_descriptors_left
from tests.supervisor.star_rig import StarRig


def test_one_that_sleeps_for_too_long_is_killed(rig: StarRig) -> None:
    """Time is what the test says, and so is what the kernel says of the processes."""
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(program) as asleep, subprocess.Popen(program) as waiting:
        rig.a.member.pid, rig.b.member.pid = asleep.pid, waiting.pid
        seen = {asleep.pid: Observed(False, 0.0), waiting.pid: Observed(True, 0.0)}
        watch = SilentFrontEnds(rig.loop, rig.star, lambda pid: seen[pid])
        watch.look(10.0)
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        for now_s in (11.0, 11.5, 11.9):
            watch.look(now_s)
        assert asleep.poll() is None
        rig.acknowledge(rig.a)
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        watch.look(12.5)  # it has acknowledged meanwhile, and has a second for what came then
        watch.look(13.0)
        assert asleep.poll() is None
        watch.look(13.5)
        assert asleep.wait() == -signal.SIGKILL
        assert waiting.poll() is None
        waiting.kill()


def test_one_that_takes_long_to_end_is_killed_once_a_second(rig: StarRig, caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as asleep:
        rig.a.member.pid = rig.b.member.pid = asleep.pid
        watch = SilentFrontEnds(rig.loop, rig.star, lambda _pid: Observed(False, 0.0))
        rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
        for now_s in (10.0, 11.0, 11.25, 11.5):
            watch.look(now_s)
        assert caplog.text.count(f"the front end with pid {asleep.pid} has not moved") == 2  # that of a, and of b


def test_the_watch_outlives_a_time_without_descriptors(rig: StarRig) -> None:
    """A front end that is silent is killed once there is a descriptor for that."""
    sleeps = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(sleeps) as asleep, subprocess.Popen(sleeps) as other:
        rig.a.member.pid, rig.b.member.pid = asleep.pid, other.pid
        watch = SilentFrontEnds(rig.loop, rig.star, lambda pid: Observed(pid != asleep.pid, 0.0))
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
        SilentFrontEnds(rig.loop, rig.star, fails).watch()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            rig.clock.pass_time(LOOK_S)
    assert len(looks) == 3
