"""Backends written in Python: a directory NAME with a model.py in --backend-directory, for all models that name it.

The rule is Triton's. Such a model needs no model.py: the backend reads the files of the model's versions.
"""

import re
from pathlib import Path

from shoal.model_config.messages import Config
from shoal.model_config.support import BACKENDS

FILENAME = "model.py"
#: Names that can only be those of a directory in the directory of backends.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def python_backend_file(backend: str, directory: Path | None) -> Path | None:
    """The model.py of a backend; None where there is none, or the backend is built in."""
    if directory is None or backend in BACKENDS or not _NAME.fullmatch(backend):
        return None
    file = directory / backend / FILENAME
    return file.absolute() if file.is_file() else None


def runs_on(config: Config) -> str:
    """The built-in backend whose code runs a valid model: "python" for a name that is not built in."""
    backend: str = config["backend"]
    return backend if backend in BACKENDS else "python"
