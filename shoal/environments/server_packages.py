"""The server's packages for a worker in an environment of its own: a directory of links to the packages that it needs.

<directory>/
├── __main__.py                     worker.py: `<interpreter> <directory>` runs it, and looks here for modules first
├── shoal, triton_python_backend_utils
└── .behind/msgpack                 looked at last: an environment's own has a C part that fits its Python
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from shoal.environments import worker
from shoal.interpreter import is_compiled

_BEFORE = ("shoal", "triton_python_backend_utils", "c_python_backend_utils")
_BEHIND = ("msgpack",)
#: The library that all extension modules of a compiled build are parts of; setup.py names it.
_COMPILED = "shoal__mypyc"


def link_packages(root: Path) -> Path:
    """The directory of links below `root`; made unless it exists. Raises OSError."""
    links = {"__main__.py": str(worker.__file__)}
    links |= {name: _location(name) for name in _BEFORE}
    if is_compiled():
        library = _origin(_COMPILED)
        links[os.path.basename(library)] = library
    links |= {f"{worker.BEHIND}/{name}": _location(name) for name in _BEHIND}
    # The directory is named by the links' targets: another server, or one that has moved, has another directory.
    directory = root / f"server-{hashlib.sha256(repr(links).encode()).hexdigest()[:16]}"
    if not directory.exists():
        fresh = Path(tempfile.mkdtemp(prefix=".", dir=root))
        (fresh / worker.BEHIND).mkdir()
        for name, target in links.items():
            (fresh / name).symlink_to(target)
        try:
            fresh.rename(directory)  # publishes: all links
        except OSError:
            shutil.rmtree(fresh)
            if not directory.exists():  # otherwise another worker has made it meanwhile
                raise
    return directory


def _location(package: str) -> str:
    return os.path.dirname(_origin(package))


def _origin(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return spec.origin
