"""Backends written in Python: a directory NAME with a model.py in --backend-directory, for all models that name it.

The rule is Triton's. Such a model needs no model.py: the backend reads the files of the model's versions. The backend
`vllm` comes with Shoal; a directory of that name takes its place.
"""

import re
from pathlib import Path

from shoal.model_config.messages import Config
from shoal.model_config.support import BACKENDS

FILENAME = "model.py"
#: The backends written in Python that come with Shoal.
_OF_SHOAL = {"vllm": Path(__file__).parents[1] / "workers" / "backends" / "vllm_backend" / FILENAME}
#: Names of backends that, as names of directories, lead nowhere but into the directory of backends.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def python_backend_file(backend: str, directory: Path | None) -> Path | None:
    """The model.py of a backend; None where there is none, or the backend is built in."""
    if backend in BACKENDS or not _NAME.fullmatch(backend):
        return None
    file = None if directory is None else directory / backend / FILENAME
    return file.absolute() if file is not None and file.is_file() else _OF_SHOAL.get(backend)


def runs_on(config: Config) -> str:
    """The built-in backend whose code runs a valid model: "python" for a name that is not built in."""
    backend: str = config["backend"]
    return backend if backend in BACKENDS else "python"
