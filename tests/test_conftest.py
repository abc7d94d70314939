"""How this project's tests are run: what a process of tests tells of each."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OUTCOMES = """
import pytest

@pytest.fixture
def broken():
    raise ValueError("set up")

@pytest.fixture
def left():
    yield
    raise ValueError("torn down")

def test_passes(): ...
def test_fails(): assert False
def test_is_skipped(): pytest.skip()
def test_is_not_set_up(broken): ...
def test_is_not_torn_down(left): ...
@pytest.mark.skip
def test_is_never_begun(): ...
@pytest.mark.xfail
def test_fails_as_expected(): assert False
"""


@pytest.mark.parametrize("more", [[], ["--durations=9", "--durations-min=0"]], ids=["one report", "all reports"])
def test_every_outcome_is_told_in_however_few_messages(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_protocol\n")
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--numprocesses=1",
        "--rootdir=.",
        f"--override-ini=pythonpath={ROOT}",
    ]
    done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()[-1]
    assert said.startswith("1 failed, 2 passed, 2 skipped, 1 xfailed, 2 errors in "), done
    assert ("s setup " in done.stdout) is bool(more)  # how long it took
