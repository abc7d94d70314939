"""interpreter.py: what real interpreters say, what is no interpreter, and the variables of an activated environment."""

import os
import sys
from pathlib import Path

import pytest

from shoal.environments.interpreter import ask, variables_of
from shoal.errors import InvalidArgumentError
from tests.environments.places import make_venv


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("has_numpy", [True, False])
def test_a_virtual_environment(tmp_path: Path, has_numpy: bool) -> None:
    python = make_venv(tmp_path / "e", has_numpy=has_numpy) / "bin" / "python"
    found = ask(python, os.environ)
    assert found == (python, tuple(sys.version_info[:3]), has_numpy, tmp_path / "e")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("printf '3.9.18\\n1\\n/usr\\n'", "is Python 3.9.18; a worker needs 3.10 or later"),
        ("printf '2.7.18\\n1\\n/usr\\n'", "is Python 2.7.18; a worker needs 3.10 or later"),
        ("echo something", "does not run: it does not answer as a Python does"),
        ("echo first; echo it is broken >&2; exit 3", "does not run: it is broken"),
        ("exit 3", "does not run: exit code 3"),
    ],
)
def test_what_will_not_do(tmp_path: Path, text: str, sentence: str) -> None:
    path = program(tmp_path / "python", text)
    with pytest.raises(InvalidArgumentError) as caught:
        ask(path, os.environ)
    assert str(caught.value) == f"interpreter '{path}' {sentence}"


def test_what_cannot_be_executed(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.touch()
    with pytest.raises(InvalidArgumentError, match="does not run: Permission denied"):
        ask(path, os.environ)


OURS = {"PATH": "/usr/bin", "HOME": "/h", "PYTHONPATH": "/ours", "PYTHONHOME": "/ours", "VIRTUAL_ENV": "/ours"}


def test_variables_of_a_plain_interpreter() -> None:
    assert variables_of(Path("/opt/p/bin/python"), OURS) == {"PATH": "/opt/p/bin:/usr/bin", "HOME": "/h"}


def test_variables_of_a_virtual_environment(tmp_path: Path) -> None:
    directory = make_venv(tmp_path / "e", has_numpy=False)
    assert variables_of(directory / "bin" / "python", OURS) == {
        "PATH": f"{directory}/bin:/usr/bin",
        "HOME": "/h",
        "VIRTUAL_ENV": str(directory),
    }


def test_variables_of_a_conda_environment(tmp_path: Path) -> None:
    directory = tmp_path / "e e"
    (directory / "conda-meta").mkdir(parents=True)
    scripts = directory / "etc" / "conda" / "activate.d"
    program(scripts / "a.sh", 'echo activating; export DATA="$CONDA_PREFIX/data"')
    program(scripts / "b.sh", 'export MORE="$DATA and\nmore"')
    found = variables_of(directory / "bin" / "python", OURS)
    assert found["CONDA_PREFIX"] == str(directory)
    assert found["CONDA_DEFAULT_ENV"] == "e e"
    assert found["MORE"] == f"{directory}/data and\nmore"
    assert found["PATH"] == f"{directory}/bin:/usr/bin"
    assert "PYTHONPATH" not in found
    program(scripts / "c.sh", "exit 5")
    with pytest.raises(InvalidArgumentError, match=r"the scripts in '.*activate.d' fail: .*exit status 5"):
        variables_of(directory / "bin" / "python", OURS)
