"""niceness.py: all threads of a process yield priority and regain it; none yields where it could not regain it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.supervisor.processes import niceness
from tests.scarcity import no_descriptors_left

#: A process with a thread and a child; they end with their input.
THREE = """
import subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
subprocess.Popen(["cat"])
print(flush=True)
sys.stdin.read()
"""
#: What becomes of a process that may not come back.
NO_RETURN = """
import os, resource
from shoal.supervisor.processes.niceness import lower_priority, restore_priority
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
if os.geteuid() == 0:
    os.setuid(65534)
before = os.getpriority(os.PRIO_PROCESS, 0)
lower_priority(os.getpid())
assert os.getpriority(os.PRIO_PROCESS, 0) == before
restore_priority(os.getpid())
"""


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", THREE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def of_all(pid: int) -> list[int]:
    """The niceness of its threads and its child."""
    threads = os.listdir(f"/proc/{pid}/task")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [os.getpriority(os.PRIO_PROCESS, int(each)) for each in (*threads, *children)]


def test_all_give_way_and_join_in(process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with monkeypatch.context() as patched:
        patched.setattr(niceness, "_can_restore", lambda: True)  # that way, anybody may
        niceness.lower_priority(process.pid)
    nicer = min(ours + 15, 19)
    assert of_all(process.pid) == [nicer] * 3
    niceness.restore_priority(process.pid)
    assert of_all(process.pid) == [ours if niceness._can_restore() else nicer] * 3


def test_one_that_has_ended_does_not_mind() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    niceness.lower_priority(ended.pid)
    ended.wait()
    niceness.lower_priority(ended.pid)


def test_trying_it_changes_nothing(process: "subprocess.Popen[bytes]") -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    niceness._can_restore.cache_clear()
    niceness.restore_priority(process.pid)
    assert [os.getpriority(os.PRIO_PROCESS, 0), *of_all(process.pid)] == [before] * 4


def test_one_thread_that_cannot_be_started_does_not_end_priorities(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ours = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(niceness, "_try_to_restore", lambda: True)
    niceness._can_restore.cache_clear()
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        niceness.lower_priority(process.pid)
    assert of_all(process.pid) == [ours] * 3
    niceness.lower_priority(process.pid)
    niceness._can_restore.cache_clear()
    assert of_all(process.pid) == [min(ours + 15, 19)] * 3


def test_no_priority_is_lowered_that_cannot_be_restored() -> None:
    subprocess.run([sys.executable, "-c", NO_RETURN], check=True)


def test_without_a_descriptor_left_a_process_keeps_its_priority(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(niceness, "_can_restore", lambda: True)
    before = of_all(process.pid)
    with no_descriptors_left():
        niceness.lower_priority(process.pid)
    assert of_all(process.pid) == before
