"""Fault points: every step exists, fires where it says, and nothing happens without the variable."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import fault

ROOT = Path(__file__).parents[1]

#: A process of our own that reaches a step by hand: an exchange is more than is needed, a doorbell is enough.
REACH = """
from shoal import fault
fault.install("batcher")
from shoal.shm.doorbell import Doorbell
bell = Doorbell.create()
for number in range(3):
    bell.ring()
    print(number, flush=True)
"""


def run(setting: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, fault.VARIABLE: setting}
    command = [sys.executable, "-c", REACH]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_every_step_is_reached_somewhere_and_nothing_else_is() -> None:
    sources = [path for folder in ("shoal", "shm", "batcher", "workers") for path in (ROOT / folder).rglob("*.py")]
    named = {step for path in sources for step in re.findall(r'\breached\("(\w+)"', path.read_text())}
    assert named == {step for steps in fault.STEPS.values() for step in steps}


def test_without_the_variable_nothing_happens() -> None:
    assert run("").stdout == "0\n1\n2\n"


@pytest.mark.parametrize(("action", "status"), [("kill", -9), ("abort", -6), ("segfault", -11), ("exit=7", 7)])
def test_a_process_ends_right_after_the_step(action: str, status: int) -> None:
    ended = run(f"batcher.rung:{action}")
    assert (ended.returncode, ended.stdout) == (status, "")


def test_steps_of_other_kinds_are_left_alone() -> None:
    assert run("worker.rung:kill,lane.rung:kill").stdout == "0\n1\n2\n"


def test_a_file_fires_once_and_is_gone(tmp_path: Path) -> None:
    (tmp_path / "batcher.rung").write_text("exit=5")
    assert run(str(tmp_path)).returncode == 5
    assert not list(tmp_path.iterdir())
    assert run(str(tmp_path)).stdout == "0\n1\n2\n"


@pytest.mark.parametrize("setting", ["batcher.rung", "batcher.sung:kill", "batcher.rung:explode", "nobody.rung:kill"])
def test_what_cannot_be_understood_is_refused(setting: str) -> None:
    ended = run(setting)
    assert ended.returncode == 1
    assert f"$SHOAL_FAULT has '{setting}'; expected STEP:ACTION as in worker.begun:kill" in ended.stderr
