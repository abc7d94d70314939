"""The interpreter of a worker's environment: its version, whether a worker can run on it, and its variables."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InvalidArgumentError

#: The oldest version of Python on which a worker's code runs.
MIN_VERSION = (3, 10)
#: Variables of the server's own environment that would be wrong in another.
_OURS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
#: A program for any version of Python. numpy is looked for, not imported: the import takes as long as a whole start.
_QUESTION = """
import sys
try:
    from importlib.util import find_spec
except ImportError:
    find_spec = lambda name: None
sys.stdout.write("%d.%d.%d\\n%d\\n%s\\n" % (sys.version_info[:3] + (find_spec("numpy") is not None, sys.prefix)))
"""
_ANSWER_S = 60.0


class Interpreter(NamedTuple):
    """An interpreter, by its own report."""

    path: Path
    version: tuple[int, int, int]
    has_numpy: bool
    prefix: Path  # the directory of its environment


def ask(path: Path, variables: Mapping[str, str]) -> Interpreter:
    """Run an interpreter to learn its version. Raises InvalidArgumentError where it is no Python, or too old."""
    try:
        answer = subprocess.run(
            [path, "-s", "-E", "-c", _QUESTION],
            env=variables, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=True,
        )  # fmt: skip
        version, numpy, prefix = answer.stdout.decode().splitlines()
        major, minor, micro = map(int, version.split("."))
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {error.returncode}"]
        raise InvalidArgumentError(f"interpreter '{path}' does not run: {words[-1]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer as a Python does"
        raise InvalidArgumentError(f"interpreter '{path}' does not run: {reason}") from error
    if (major, minor) < MIN_VERSION:
        raise InvalidArgumentError(f"interpreter '{path}' is Python {version}; a worker needs 3.10 or later")
    return Interpreter(path, (major, minor, micro), numpy == "1", Path(prefix))


def variables_of(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables `environ` as they would be after activating the environment of the interpreter at `path`. Raises
    InvalidArgumentError if conda's scripts fail."""
    found = {name: value for name, value in environ.items() if name not in _OURS}
    directory = path.parent
    found["PATH"] = f"{directory}:{environ.get('PATH', os.defpath)}"
    prefix = directory.parent
    if (prefix / "pyvenv.cfg").exists():
        found["VIRTUAL_ENV"] = str(prefix)
    elif (prefix / "conda-meta").is_dir():
        found |= {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": prefix.name}
        found = _activate(sorted(prefix.glob("etc/conda/activate.d/*.sh")), found)
    return found


def _activate(scripts: list[Path], variables: dict[str, str]) -> dict[str, str]:
    """The variables after running conda's activation scripts, which mostly set paths of packages' data."""
    if not scripts:
        return variables
    sourced = 'for script in "$@"; do . "$script" >&2; done; exec env -0'
    try:
        done = subprocess.run(
            ["bash", "-c", sourced, "bash", *scripts],
            env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_ANSWER_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidArgumentError(f"the scripts in '{scripts[0].parent}' fail: {error}") from error
    pairs = (pair.partition("=") for pair in os.fsdecode(done.stdout).split("\0") if pair)
    return {name: value for name, _, value in pairs}
