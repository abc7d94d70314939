"""The scripts: short enough to read at a glance, and nothing to do once everything is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)


def run_venv(checkout: Path, *extras: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/_venv in `checkout` with an empty PATH but for sh's own needs, so that no Python can be found."""
    tools = checkout / "tools"
    tools.mkdir(exist_ok=True)
    tr = shutil.which("tr")
    assert tr
    if not (tools / "tr").exists():
        (tools / "tr").symlink_to(tr)
    command = ["/bin/sh", str(ROOT / "scripts" / "_venv"), *extras]
    return subprocess.run(
        command, cwd=checkout, env={"PATH": str(tools)}, capture_output=True, text=True, timeout=10, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose `.venv` was installed with the extra `onnx` after pyproject.toml was last changed."""
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (1000, 1000))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".has-onnx").touch()
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_posix_sh_of_at_most_25_lines(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/bin/sh\n# scripts/" + script.name)
    assert len(text.splitlines()) <= 25
    assert os.access(script, os.X_OK)
    subprocess.run(["/bin/sh", "-n", str(script)], timeout=10, check=True)


def test_nothing_is_started_when_the_extras_are_installed(checkout: Path) -> None:
    done = run_venv(checkout, "onnx")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("change", ["another extra", "a newer pyproject.toml"])
def test_without_python_the_missing_installation_is_refused_and_nothing_changed(checkout: Path, change: str) -> None:
    extras = ["onnx", "dev"] if change == "another extra" else ["onnx"]
    if change == "a newer pyproject.toml":
        os.utime(checkout / ".venv" / ".has-onnx", (999, 999))
    done = run_venv(checkout, *extras)
    assert done.returncode == 1
    assert done.stderr == f"Shoal needs Python 3.10 or newer; no such python3 is on the PATH ({checkout}/tools).\n"
    assert [path.name for path in (checkout / ".venv").iterdir()] == [".has-onnx"]


@pytest.mark.parametrize(("has_ensurepip", "advice"), [(True, "must be yours to write to"), (False, "python3-venv")])
def test_an_environment_that_cannot_be_made_is_explained_by_its_cause(
    checkout: Path, has_ensurepip: bool, advice: str
) -> None:
    """An interpreter as root's checkout has it for another user, or Debian without the package python3-venv."""
    (checkout / "tools").mkdir()
    python = checkout / "tools" / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -IS) echo fast ;; -c) exit {int(not has_ensurepip)} ;; *) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    done = run_venv(checkout, "onnx", "dev")
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("Could not make .venv. ")
    assert advice in sentence


def test_help_of_the_benchmark_installs_nothing(tmp_path: Path) -> None:
    """On a copy without .venv, by an interpreter without packages."""
    for folder in ("scripts", "bench", "model_repository"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shoal").mkdir()
    shutil.copy(ROOT / "shoal" / "interpreter.py", tmp_path / "shoal")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tools / "python3").chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "bench", "--help"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "SHOAL_PYTHON": f"{tools}/python3"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "takeover" in done.stdout  # a situation of --isolation
    assert not (tmp_path / ".venv").exists()
