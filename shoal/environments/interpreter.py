"""An interpreter that a worker is to run in: what it is, whether it will do, and the variables it wants around it."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InvalidArgumentError

#: The oldest that a worker's code runs on.
MIN_VERSION = (3, 10)
#: Variables of the server's own environment, wrong in another.
_OURS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
#: For every Python there ever was. numpy is looked for, not imported: that would take as long as the rest of a start.
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
    """What an interpreter says of itself."""

    path: Path
    version: tuple[int, int, int]
    has_numpy: bool
    prefix: Path  # of its environment


def ask(path: Path, variables: Mapping[str, str]) -> Interpreter:
    """Look at an interpreter. Raises InvalidArgumentError where it is none, or is too old for a worker."""
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
    """`environ` as it is where the environment of the interpreter at `path` has been activated."""
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
    """What packages of conda set when their environment is activated: where their data lie, for the most part."""
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
