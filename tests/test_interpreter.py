"""How an interpreter was built, and which of several scripts/_python prefers."""

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shoal import interpreter
from tests.test_pythons import SUPPORTED

ROOT = Path(__file__).parents[1]


def python(folder: Path, name: str, rated: str) -> Path:
    """A command in `folder` that answers, as an interpreter would, how interpreter.py rates it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase "$2" in *shoal/interpreter.py) echo {rated} ;; *) exit 1 ;; esac\n')
    path.chmod(0o755)
    return path


def choose(*folders: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/_python with these folders as the PATH."""
    return subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "_python"],
        env={"PATH": ":".join(map(str, folders)), **environment},
        capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scheme_names", "arguments", "is_guided"),
    [
        (("posix_prefix",), "'--enable-shared'", False),
        (("posix_prefix",), "'--enable-optimizations' '--with-lto'", True),
        (("deb_system", "posix_prefix"), "'--enable-shared'", True),
        (("posix_prefix",), None, False),  # another implementation than CPython
    ],
)
def test_profile_guided_builds_are_known(
    monkeypatch: pytest.MonkeyPatch, scheme_names: tuple[str, ...], arguments: str | None, is_guided: bool
) -> None:
    monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: scheme_names)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: arguments)
    assert interpreter.is_profile_guided() is is_guided
    assert f" {'with' if is_guided else 'without'} PGO, " in interpreter.describe()


def test_this_interpreter_rates_itself_as_scripts_ask_it_to() -> None:
    command = [sys.executable, "-IS", f"{ROOT / 'shoal' / 'interpreter.py'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    tried = "fast\n" if interpreter.is_profile_guided() else "slow\n"
    assert done.stdout == (tried if platform.python_version().rpartition(".")[0] in SUPPORTED else "new\n")
    assert interpreter.describe().startswith(f"CPython {platform.python_version()} with")


def test_a_compiled_build_says_so() -> None:
    import shoal.memo

    is_compiled = not (shoal.memo.__file__ or "").endswith(".py")
    assert interpreter.is_compiled() is is_compiled
    assert interpreter.describe().endswith(" PGO, compiled" if is_compiled else " PGO, pure Python")


def test_a_profile_guided_build_comes_before_others(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    python(first, "python3", "slow")
    fast = python(second, "python3", "fast")
    python(first, "python3.13", "fast")
    assert choose(first, second).stdout == f"{fast}\n"
    assert choose(second, first).stdout == f"{fast}\n"


def test_one_that_cannot_make_environments_is_the_last_resort(tmp_path: Path) -> None:
    bare, slow = python(tmp_path / "first", "python3", "bare"), python(tmp_path / "second", "python3.10", "slow")
    python(tmp_path / "first", "python3.12", "old")
    assert choose(bare.parent, slow.parent).stdout == f"{slow}\n"
    assert choose(bare.parent).stdout == f"{bare}\n"


def test_one_that_is_newer_than_those_that_were_tried_comes_after_them(tmp_path: Path) -> None:
    """Frameworks have wheels for a new Python months after it."""
    new, slow = python(tmp_path / "first", "python3", "new"), python(tmp_path / "second", "python3.13", "slow")
    bare = python(tmp_path / "third", "python3", "bare")
    assert choose(new.parent, slow.parent).stdout == f"{slow}\n"
    assert choose(bare.parent, new.parent).stdout == f"{new}\n"
    assert choose(slow.parent, SHOAL_PYTHON=str(new)).stdout == f"{new}\n"


@pytest.mark.parametrize(("minor", "rated"), [(9, "old"), (14, "fast"), (15, "new")])
def test_an_interpreter_is_rated_by_its_version(monkeypatch: pytest.MonkeyPatch, minor: int, rated: str) -> None:
    monkeypatch.setattr(sys, "version_info", (3, minor, 0))
    monkeypatch.setattr(interpreter, "is_profile_guided", lambda: True)
    assert interpreter.rate() == rated


def test_an_explicit_choice_is_kept_whatever_its_build(tmp_path: Path) -> None:
    python(tmp_path, "python3", "fast")
    chosen = python(tmp_path / "mine", "python", "slow")
    assert choose(tmp_path, SHOAL_PYTHON=str(chosen)).stdout == f"{chosen}\n"


def test_an_explicit_choice_that_is_too_old_is_refused(tmp_path: Path) -> None:
    python(tmp_path, "python3", "fast")
    old = python(tmp_path / "mine", "python", "old")
    done = choose(tmp_path, SHOAL_PYTHON=str(old))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Shoal needs Python 3.10 or newer; SHOAL_PYTHON={old} is not.\n"


def test_without_an_interpreter_the_path_is_told(tmp_path: Path) -> None:
    python(tmp_path, "python3", "old")
    done = choose(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Shoal needs Python 3.10 or newer; no such python3 is on the PATH ({tmp_path}).\n"


def test_a_real_search_finds_an_interpreter() -> None:
    done = choose(*map(Path, os.get_exec_path()))
    assert (done.returncode, done.stderr) == (0, "")
    program = "import sys; sys.exit(sys.version_info < (3, 10))"
    subprocess.run([done.stdout.strip(), "-c", program], timeout=60, check=True)
