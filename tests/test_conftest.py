"""How this project's tests are run: what a process of tests tells of each."""

import os
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


HOOKS = (
    "from tests.conftest import pytest_collection_modifyitems, pytest_configure_node, pytest_handlecrashitem, "
    "pytest_pycollect_makemodule, pytest_runtest_logreport, pytest_runtest_protocol, pytest_xdist_make_scheduler\n"
)


def run(directory: Path, conftest: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The tests of a directory, run by a pytest whose conftest.py has these lines."""
    (directory / "conftest.py").write_text(conftest)
    own = ["-q", "--rootdir=.", f"--override-ini=pythonpath={ROOT}", "-p", "xdist"]
    command = [sys.executable, "-m", "pytest", *own, *arguments]
    # No plugin of another package: to import them all takes a third of such a run.
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("more", [[], ["--durations=9", "--durations-min=0"]], ids=["one report", "all reports"])
@pytest.mark.parametrize(
    "finds", [["--numprocesses=1"], ["--numprocesses=1", "--dist=loadfile"]], ids=["first", "late"]
)
def test_every_outcome_is_told_in_however_few_messages(tmp_path: Path, more: list[str], finds: list[str]) -> None:
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    done = run(tmp_path, HOOKS, *finds, *more)
    said = done.stdout.splitlines()[-1]
    assert said.startswith("1 failed, 2 passed, 2 skipped, 1 xfailed, 2 errors in "), done
    assert ("s setup " in done.stdout) is bool(more)  # how long it took


#: Tests that note in files which process has imported them, and when what they share begins and ends.
SHARING = """
import os, pathlib, pytest

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def session_wide():
    note("session begins")
    yield
    note("session ends")
"""
FILE = """
import pytest
from conftest import note

note(__name__)

@pytest.fixture(scope="module")
def shared():
    note(f"{__name__} begins")
    yield
    note(f"{__name__} ends")

@pytest.mark.parametrize("number", range(3))
def test_it(shared, session_wide, number): ...

def test_other(shared): ...
"""


def test_a_process_imports_only_the_files_that_it_runs(tmp_path: Path) -> None:
    names = [f"test_{number}" for number in range(6)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(FILE)
    done = run(tmp_path, HOOKS + SHARING, "--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
    assert done.stdout.splitlines()[-1].startswith("24 passed in "), done
    notes = [line.rpartition(" ") for line in (tmp_path / "notes").read_text().splitlines()]
    for pid in {pid for *_, pid in notes}:
        own = [what for what, _, owner in notes if owner == pid]
        files = [name for name in names if name in own]
        expected = [what for name in files for what in (name, f"{name} begins", f"{name} ends")]
        expected[1:1] = ["session begins"]
        assert own == [*expected, "session ends"]
    assert sorted(what for what, *_ in notes if what in names) == names  # each file once


FAILING = """
import pytest

def test_one(): assert 0

@pytest.mark.xfail
def test_three(): ...
"""


CRASHING = """
import os

def test_one(): ...
def test_two(): os._exit(9)
def test_three(): ...
"""


def test_a_file_that_ends_its_process_is_run_once_and_its_last_test_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_crashing.py").write_text(CRASHING)
    for name in ("test_before", "test_behind", "test_end"):
        (tmp_path / f"{name}.py").write_text("def test_it(): ...\n")
    done = run(tmp_path, HOOKS, "--numprocesses=1", "--dist=loadfile", "--no-loadscope-reorder")
    assert done.stdout.splitlines()[-1].startswith("1 failed, 4 passed in "), done
    assert "crashed while running 'test_crashing.py::all', after 'test_crashing.py::test_one'" in done.stdout


def test_nothing_of_pytests_cache_is_needed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    done = run(tmp_path, HOOKS, "--numprocesses=1", "--dist=loadfile", "-p", "no:cacheprovider")
    assert done.stdout.splitlines()[-1].startswith("1 passed in "), done


@pytest.mark.parametrize(
    "second",
    ["import pytest\n\npytest.importorskip('nothing_of_this_name')\n", "def test_other(): ...\n", "raise OSError\n"],
    ids=["skipped whole", "not chosen", "broken"],
)
def test_a_folder_ends_behind_a_last_file_without_tests(tmp_path: Path, second: str) -> None:
    for name, text in (("one/test_a", FAILING), ("one/test_b", second), ("two/test_c", FAILING)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    options = "--numprocesses=1", "--dist=loadfile", "--no-loadscope-reorder", "--import-mode=importlib"
    done = run(tmp_path, HOOKS, *options, "-k", "test_one or test_three")
    assert "2 failed, " in done.stdout, done
    assert "2 xpassed" in done.stdout, done
    assert "previous item was not torn down" not in done.stdout


def test_choosing_and_stopping_work_where_tests_are_found_late(tmp_path: Path) -> None:
    (tmp_path / "test_chosen.py").write_text("def test_one(): ...\ndef test_two(): ...\n")
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    late = "--numprocesses=1", "--dist=loadfile", "--no-loadscope-reorder"
    chosen = run(tmp_path, HOOKS, *late, "-k", "two or three", "--ignore=test_broken.py")
    assert chosen.stdout.splitlines()[-1].startswith("1 passed, 1 xpassed in "), chosen
    marked = run(tmp_path, HOOKS, *late, "-m", "xfail", "--ignore=test_broken.py")
    assert marked.stdout.splitlines()[-1].startswith("1 xpassed in "), marked
    single = run(tmp_path, HOOKS, *late, "test_chosen.py::test_two")
    assert single.stdout.splitlines()[-1].startswith("1 passed in "), single
    stopped = run(tmp_path, HOOKS, *late, "-x", "--ignore=test_broken.py")
    assert "1 failed, 2 passed in " in stopped.stdout.splitlines()[-1], stopped
    broken = run(tmp_path, HOOKS, *late, "test_broken.py", "test_chosen.py")
    assert "2 passed, 1 error in " in broken.stdout.splitlines()[-1], broken
    assert "No module named 'nothing_of_this_name'" in broken.stdout
    assert broken.returncode == 1
