"""The environment that a model asks for: by parameters of its configuration, or by a requirements.txt beside it.

Only looks at names; `resolve` makes the environment. Runs in the supervisor, whenever a worker is started.
"""

from pathlib import Path
from typing import NamedTuple

from shoal.model_config.messages import Config
from shoal.model_config.python_backends import python_backend_file, runs_on

#: Parameters of a model's configuration: Triton's, and Shoal's own.
EXECUTION_ENV_PATH, PYTHON_INTERPRETER = "EXECUTION_ENV_PATH", "PYTHON_INTERPRETER"
#: A placeholder in both: the model's directory, which has its versions. Triton's.
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
#: An archive beside the model.py of a backend: the environment of all its models. Triton's.
BACKEND_ARCHIVE = "pb_exec_env_model.py.tar.gz"
REQUIREMENTS = "requirements.txt"


class Wanted(NamedTuple):
    """The environment that a model asks for; "" where a field is not used. Relative paths start from the server's
    working directory, as in Triton."""

    execution_env: str = ""  # an archive made by conda-pack, or the directory of an environment
    interpreter: str = ""  # a path, or a name that is looked up in PATH
    requirements: str = ""  # a file with packages to install


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
    found = Wanted(execution_env, interpreter, requirements)
    return found if any(found) else None
