"""Who sleeps through its pings or spins past them stands still; who waits for a core does not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.supervisor.processes.silence import Observed, Silence, observe
from tests.end_to_end.server import wait_until
from tests.scarcity import no_descriptors_left


def seen(pid: int) -> Observed:
    observed = observe(pid)
    assert observed is not None
    return observed


@pytest.mark.parametrize(
    ("is_runnable", "cpu_share", "silent_s"),
    [
        (False, 0.0, 2.0),  # asleep, or stopped
        (True, 1.0, 2.0),  # spins
        (True, 0.25, 0.5),  # spins on a quarter of a core
        (True, 0.0, 0.0),  # waits for a core
        (True, 3.0, 2.0),  # with more threads than one
    ],
)
def test_what_counts_as_silence(is_runnable: bool, cpu_share: float, silent_s: float) -> None:
    silence = Silence(10.0)
    silence.look(10.0, Observed(is_runnable, 5.0))
    silence.reset(10.0)
    looks = [silence.look(10 + elapsed, Observed(is_runnable, 5 + elapsed * cpu_share)) for elapsed in (0.5, 1.0, 2.0)]
    assert looks == [pytest.approx(silent_s * part) for part in (0.25, 0.5, 1)]


def test_of_what_computes_a_share_counts() -> None:
    silence = Silence(0.0, busy_share=0.1)
    assert silence.look(2.0, Observed(True, 1.5)) == pytest.approx(0.15)
    assert silence.look(3.0, Observed(False, 1.5)) == pytest.approx(1.15)


def test_what_a_process_computed_before_a_reset_or_unobserved_is_no_silence() -> None:
    silence = Silence(0.0)
    silence.look(1.0, Observed(True, 0.5))
    silence.reset(20.0)
    assert silence.look(21.0, Observed(True, 15.0)) == 0.0  # it waits for a core now
    assert silence.look(22.0, None) == 0.0
    assert silence.look(23.0, Observed(True, 16.0)) == 0.0
    assert silence.look(24.0, Observed(True, 17.0)) == 1.0


def test_a_process_is_runnable_if_one_of_its_threads_is() -> None:
    spin = "import signal, threading\ndef spin():\n    while True: pass\n"
    program = f"{spin}threading.Thread(target=spin, daemon=True).start()\nprint(flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as spinning:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        main = Path(f"/proc/{spinning.pid}/stat")
        wait_until(lambda: main.read_text().rpartition(") ")[2][0] == "S")
        assert seen(spinning.pid).is_runnable
        spinning.kill()


def test_a_sign_of_life_ends_it() -> None:
    silence = Silence(0.0)
    assert silence.look(0.9, Observed(False, 0)) == pytest.approx(0.9)
    silence.reset(1.0)
    assert silence.look(1.5, Observed(False, 0)) == pytest.approx(0.5)


def test_what_the_kernel_says() -> None:
    program = "print(flush=True)\nwhile True: pass"
    spinning = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with spinning:
        assert spinning.stdout is not None
        spinning.stdout.readline()  # it was started, and waits for no file any more
        begun_s = seen(spinning.pid).cpu_s
        wait_until(lambda: seen(spinning.pid).cpu_s > begun_s)
        assert seen(spinning.pid).is_runnable
        spinning.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, spinning.pid, os.WSTOPPED)
        assert not seen(spinning.pid).is_runnable
        spinning.kill()
    assert seen(spinning.pid) == Observed(False, 0.0)
    before_s = time.process_time()
    assert seen(os.getpid()).cpu_s == pytest.approx(before_s, abs=0.5)


def test_without_a_descriptor_left_nothing_is_known_and_no_member_is_silent() -> None:
    with no_descriptors_left():
        unknown = observe(os.getpid())
    assert unknown is None
    silence = Silence(10.0)
    silence.look(10.0, Observed(True, 5.0))
    assert silence.look(12.0, unknown) == 0
    assert silence.look(12.5, Observed(False, 5.0)) == pytest.approx(0.5)


def test_what_no_signal_ends_is_no_silence() -> None:
    """A process waits for memory or a disk in the state in which vfork leaves the parent until the child has ended."""
    program = """
import ctypes, os, platform, signal
CLONE_VFORK, SYS_CLONE = 0x4000, {"x86_64": 56, "aarch64": 220}[platform.machine()]
if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    print(flush=True)
    os.read(0, 1)
    os._exit(0)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()  # its child runs
        main = Path(f"/proc/{process.pid}/stat")
        assert main.read_text().rpartition(") ")[2][0] == "D"
        assert seen(process.pid).is_runnable
        process.stdin.close()  # the child ends
        wait_until(lambda: main.read_text().rpartition(") ")[2][0] == "S")
        assert not seen(process.pid).is_runnable
        process.kill()
