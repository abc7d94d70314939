"""A model's environment, ready to use: found, unpacked or installed.

May take minutes and write gigabytes. Runs in the process that will become the worker (enter.py).
"""

import hashlib
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import SIGTERM
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run
from typing import NamedTuple

from shoal.environments.cache import Cache
from shoal.environments.interpreter import Interpreter, ask, variables_of
from shoal.environments.requirements import contents
from shoal.environments.wanted import EXECUTION_ENV_PATH, PYTHON_INTERPRETER, Wanted, cannot_be_made
from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.file_kinds import exists
from shoal.passwords import without_passwords
from shoal.process import die_with_parent

#: How many of an installer's last lines are quoted when it fails.
_LAST_LINES = 12
#: A shell that runs a program with children, such as pip, and ends them with this process. Otherwise they would go on
#: filling a directory which the next server has begun to fill anew.
_WITH_ITS_CHILDREN = ("/bin/sh", "-c", 'trap "kill -9 0" TERM; "$@" & wait $!', "sh")


#: Takes a line of an installer's output, or one about progress.
Log = Callable[[str], None]


class Environment(NamedTuple):
    """An environment in which a worker can run."""

    interpreter: Path
    variables: dict[str, str]  # all variables of the worker's process
    directory: Path


def resolve(wanted: Wanted, cache: Cache, environ: Mapping[str, str], log: Log) -> Environment:
    """Make the wanted environment, unless it exists; `log` takes the installer's lines. Raises ShoalError with the
    reason where it cannot be made."""
    refuse_missing(wanted, environ)
    try:
        path = _interpreter(wanted, cache, environ, log)
    except OSError as error:
        raise UnavailableError(f"no environment for this model: {error}") from error
    variables = variables_of(path, environ)
    interpreter = ask(path, variables)
    if not interpreter.has_numpy:
        raise InvalidArgumentError(
            f"there is no numpy in the environment '{interpreter.prefix}', and a worker needs it; install it there"
        )
    return Environment(path, variables, interpreter.prefix)


def refuse_missing(wanted: Wanted, environ: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError if a file of which an environment is made is missing, or two are named that exclude
    each other; makes and runs nothing."""
    if wanted.execution_env and wanted.interpreter:
        raise InvalidArgumentError(f"{EXECUTION_ENV_PATH} and {PYTHON_INTERPRETER} are both set; one of them has to go")
    if wanted.execution_env:
        place = Path(wanted.execution_env).absolute()
        try:
            fault = "" if exists(place) else " does not exist"
        except OSError as error:
            fault = f": {error.strerror}"
        if fault:
            raise InvalidArgumentError(f"{EXECUTION_ENV_PATH} '{place}'{fault}")
    if wanted.interpreter and shutil.which(wanted.interpreter, path=environ.get("PATH")) is None:
        raise InvalidArgumentError(f"{PYTHON_INTERPRETER} '{wanted.interpreter}' is no program")


def _interpreter(wanted: Wanted, cache: Cache, environ: Mapping[str, str], log: Log) -> Path:
    if wanted.execution_env:
        place = Path(wanted.execution_env).absolute()
        return _python_in(place if place.is_dir() else _unpacked(place, cache, environ, log))
    base = Path(sys.executable)
    if wanted.interpreter:
        base = Path(shutil.which(wanted.interpreter, path=environ.get("PATH")) or wanted.interpreter).absolute()
    if not wanted.requirements:
        return base
    return _python_in(_installed(wanted, base, cache, environ, log))


def _python_in(directory: Path) -> Path:
    # Not resolved: a virtual environment's Python finds its environment by this link.
    path = directory / "bin" / "python"
    if not path.exists():
        raise InvalidArgumentError(
            f"there is no bin/python in '{directory}'; {EXECUTION_ENV_PATH} is an archive made by conda-pack, "
            "or the directory of an environment"
        )
    return path


def _unpacked(archive: Path, cache: Cache, environ: Mapping[str, str], log: Log) -> Path:
    """The directory of an archive's environment, unpacked and adapted to its new place."""
    from shoal.environments.archive import unpack  # here, to spare the supervisor 0.5 MiB of tarfile

    cache.prepare()

    def make(directory: Path) -> None:
        log(f"unpacking '{archive}'")
        unpack(archive, directory)
        prefixes = directory / "bin" / "conda-unpack"
        if prefixes.exists():  # rewrites paths of the directory in which the environment was packed
            python = _python_in(directory)
            _run([str(python), str(prefixes)], directory, variables_of(python, environ), f"archive '{archive}'", log)

    return cache.get(f"archive-{cache.digest(archive)}", make, log)


def _installed(wanted: Wanted, base: Path, cache: Cache, environ: Mapping[str, str], log: Log) -> Path:
    """The directory of a virtual environment of `base` with the packages in a requirements.txt, and numpy."""
    cache.prepare()
    requirements, names = Path(wanted.requirements), ("site-packages", "dist-packages") if wanted.inherits else ()
    inherited = [each for each in sys.path if os.path.basename(each) in names]  # this process's own packages
    interpreter = ask(base, variables_of(base, environ))
    facts = [os.fsencode(base.resolve()), repr(interpreter.version).encode(), *contents(requirements, cache.digest)]
    facts += [os.fsencode(each) for each in inherited]
    key = hashlib.sha256(b"\0".join(facts)).hexdigest()

    def make(directory: Path) -> None:
        log(f"installing '{requirements}'")
        _install(requirements, interpreter, directory, environ, log, inherited)

    return cache.get(f"requirements-{key}", make, log)


def _install(
    requirements: Path,
    base: Interpreter,
    directory: Path,
    environ: Mapping[str, str],
    log: Log,
    inherited: Sequence[str],
) -> None:
    what, place = f"'{requirements}'", requirements.parent  # relative paths in the file start there
    create, install = _installers(base, directory, environ)
    _run(create, place, variables_of(base.path, environ), what, log)
    python = directory / "bin" / "python"
    if inherited:
        # In sys.path, the server's packages come behind the environment's own; addsitedir also reads their .pth files.
        (packages,) = directory.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({each!r})\n" for each in inherited]
        (packages / "_shoal_inherited.pth").write_text("".join(lines))
    variables = variables_of(python, environ)
    install += ["-r", str(requirements)]
    _run(install, place, variables, what, log)
    if not ask(python, variables).has_numpy:
        _run([*install, "numpy"], place, variables, what, log)  # from the package index that the file names


def _installers(base: Interpreter, directory: Path, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The commands that create a virtual environment, and that install into it: the fastest available."""
    path, python = str(base.path), str(directory / "bin" / "python")
    if uv := shutil.which("uv", path=environ.get("PATH")):
        create = [uv, "venv", "--allow-existing", "--python", path, str(directory)]
        return create, [uv, "pip", "install", "--python", python]
    create, pip = [path, "-m", "venv", str(directory)], ["-m", "pip", "--no-input", "--disable-pip-version-check"]
    # From 22.3 on, this interpreter's pip installs into other environments; giving each its own pip takes 7 s.
    question = [path, *pip, "--python", path, "--version"]
    answer = run(question, env=variables_of(base.path, environ), stdin=DEVNULL, capture_output=True, check=False)
    if answer.returncode:
        return create, [python, *pip, "install"]
    return [*create, "--without-pip"], [path, *pip, "--python", python, "install"]


def _run(command: Sequence[str], directory: Path, variables: Mapping[str, str], what: str, log: Log) -> None:
    """Run a program and pass on its output, line by line. Raises InternalError with its last lines."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with Popen(
        [*_WITH_ITS_CHILDREN, *command], cwd=directory, env=variables, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        text=True, errors="replace", start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid(), SIGTERM),  # noqa: PLW1509 - we have one thread
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            last.append(without_passwords(line.rstrip()))
            log(last[-1])
    if process.returncode:
        words = "\n".join(last)
        raise InternalError(cannot_be_made(what, command[0], words))
