"""The environment that a model asks for: by parameters of its configuration, by an archive beside its backend's
model.py, by a requirements.txt, or by the requirements of a TorchServe archive.

Only looks which files there are; `resolve` makes the environment. Runs in the supervisor, whenever a worker is started.
"""

import re
from pathlib import Path
from typing import NamedTuple

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.model_config.python_backends import python_backend_file, runs_on

#: Parameters of a model's configuration: Triton's, and Shoal's own.
EXECUTION_ENV_PATH, PYTHON_INTERPRETER = "EXECUTION_ENV_PATH", "PYTHON_INTERPRETER"
#: Triton's placeholder in the values of both: the model's directory, which has the directories of its versions.
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
#: An archive beside the model.py of a backend: the environment of all its models. Triton's.
BACKEND_ARCHIVE = "pb_exec_env_model.py.tar.gz"
REQUIREMENTS = "requirements.txt"
#: The parameter with the name of an archive's own file of requirements.
ARCHIVE_REQUIREMENTS = "ts_requirements"
_FAILURE = re.compile("the environment of '[^\n]*' cannot be made: ")


class Wanted(NamedTuple):
    """The environment that a model asks for; "" where a field is not used. Relative paths start from the server's
    working directory, as in Triton."""

    execution_env: str = ""  # an archive made by conda-pack, or the directory of an environment
    interpreter: str = ""  # a path, or a name that is looked up in PATH
    requirements: str = ""  # a file with packages to install
    inherits: bool = False  # with `requirements`: other packages that the server has are seen, too


def wanted(version_dir: Path, config: Config, backend_directory: Path, *, install_requirements: bool) -> Wanted | None:
    """The environment that a version of a model asks for; None where the server's own Python will do."""
    model_dir = version_dir.parent
    execution_env, interpreter = (
        str(config["parameters"].get(key, {}).get("string_value", "")).replace(MODEL_DIRECTORY, str(model_dir))
        for key in (EXECUTION_ENV_PATH, PYTHON_INTERPRETER)
    )
    places = [version_dir, model_dir]
    if backend_file := python_backend_file(config["backend"], backend_directory):
        places.append(backend_file.parent)
        archive = backend_file.parent / BACKEND_ARCHIVE
        if not execution_env and not interpreter and archive.exists():
            execution_env = str(archive)
    requirements = ""
    # An environment that was made elsewhere is complete already. And only Python models have a requirements.txt.
    if install_requirements and not execution_env and runs_on(config) == "python":
        files = (place / REQUIREMENTS for place in places)
        requirements = next((str(file.absolute()) for file in files if file.is_file()), "")
    named = parameter(config, ARCHIVE_REQUIREMENTS) if runs_on(config) == "torchserve" else None
    inherits = bool(named and install_requirements and not execution_env)
    if inherits:  # handlers see the server's packages, torch among them, and the archive's own
        requirements = str((version_dir / Path(str(named)).name).absolute())
    found = Wanted(execution_env, interpreter, requirements, inherits)
    return found if any(found) else None


def cannot_be_made(what: str, command: str, words: str) -> str:
    """The sentence of an environment whose installation has failed, with the last words of the installer."""
    return f"the environment of {what} cannot be made: {command} failed with\n{words}"


def is_installation_failure(sentence: str) -> bool:
    """Whether the reason of a load that has failed says that an environment `cannot_be_made`."""
    return _FAILURE.search(sentence) is not None
