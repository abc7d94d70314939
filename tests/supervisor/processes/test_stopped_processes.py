"""stopped_processes.py: a stopped process is resumed, one that is stopped again is killed, a standstill excuses all."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.processes.silence import observe
from shoal.supervisor.processes.stopped_processes import (
    AGAIN_WITHIN_S,
    LOOK_S,
    STOPPED_S,
    StoppedProcesses,
    Stops,
    Watched,
    is_stopped,
)
from tests.end_to_end.server import wait_until

A, B = 71, 72


def test_a_process_that_is_stopped_for_long_is_resumed_and_one_that_is_stopped_again_is_killed() -> None:
    stops = Stops()
    assert stops.look(10.0, [A]) == {}
    assert stops.look(10.0 + STOPPED_S - 0.1, [A, B]) == {}
    assert stops.look(10.0 + STOPPED_S, [A, B]) == {A: signal.SIGCONT}
    assert stops.look(10.5 + STOPPED_S, [B]) == {}
    assert stops.look(20.0, [A]) == {}
    assert stops.look(20.0 + STOPPED_S, [A]) == {A: signal.SIGKILL}
    later_s = 30.0 + STOPPED_S + AGAIN_WITHIN_S
    assert stops.look(later_s, [B]) == {}
    assert stops.look(later_s + STOPPED_S, [B]) == {B: signal.SIGCONT}


def test_a_process_that_does_not_resume_is_killed() -> None:
    stops = Stops()
    stops.look(10.0, [A])
    assert stops.look(10.0 + STOPPED_S, [A]) == {A: signal.SIGCONT}
    assert stops.look(10.0 + STOPPED_S + LOOK_S, [A]) == {}
    assert stops.look(10.0 + 2 * STOPPED_S, [A]) == {A: signal.SIGKILL}


@given(st.lists(st.tuples(st.floats(0.1, 20.0), st.booleans(), st.booleans()), max_size=40))
def test_no_signal_without_a_time_in_which_it_was_stopped_at_every_look(
    looks: list[tuple[float, bool, bool]],
) -> None:
    """Of each look: the pause before it, whether the machine stood still then, and whether the process is stopped."""
    stops, now_s, stopped_for_s = Stops(), 0.0, -1.0
    for pause_s, is_late, is_now_stopped in looks:
        now_s += pause_s
        if not is_now_stopped:
            stopped_for_s = -1.0
        elif stopped_for_s < 0 or is_late:
            stopped_for_s = 0.0
        else:
            stopped_for_s += pause_s
        signals = stops.look(now_s, [A] if is_now_stopped else [], is_late=is_late)
        assert not signals or stopped_for_s >= STOPPED_S - 1e-6
        if signals:
            stopped_for_s = 0.0


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_a_real_process(sleeper: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture) -> None:
    watched = [Watched(sleeper.pid, "the poller", sleeper.send_signal)]
    processes = StoppedProcesses(EventLoop(), lambda: watched)
    assert not is_stopped(sleeper.pid)
    for resumed_s in (10.0, 20.0):
        sleeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(sleeper.pid))  # the kernel has delivered the signal
        processes.look(resumed_s)
        processes.look(resumed_s + STOPPED_S)
        if resumed_s == 10.0:
            wait_until(lambda: not is_stopped(sleeper.pid))
    assert sleeper.wait() == -signal.SIGKILL
    assert not is_stopped(sleeper.pid)
    first, second = caplog.messages
    assert first == f"the poller (pid {sleeper.pid}) has been stopped for 3 s; it is resumed"
    assert second == f"the poller (pid {sleeper.pid}) has been stopped for 3 s; it is killed, as it was stopped again"


def test_a_process_whose_name_ends_within_a_character_is_looked_at() -> None:
    """As the kernel cuts the title of the worker of a model that is called "aöl", or has a Japanese name."""
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'shoal worker a\\xc3\\xb6l')  # PR_SET_NAME\n"
        "print(flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        assert Path(f"/proc/{named.pid}/comm").read_bytes() == b"shoal worker a\xc3\n"
        assert not is_stopped(named.pid)
        assert observe(named.pid) is not None
