"""server_packages.py: a worker imports itself from the links, numpy from its environment, and sees nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

from shoal.environments.interpreter import variables_of
from shoal.environments.server_packages import link_packages
from shoal.interpreter import is_compiled
from tests.environments.places import make_venv

#: The library of a compiled build, of which its modules are parts.
LIBRARY = ["shoal__mypyc"] if is_compiled() else []

_LOOK = """
import json, os, sys
sys.path[0] = {links!r}
sys.path.append(os.path.join({links!r}, ".behind"))
import shoal.workers.worker, shoal.workers.backends.identity
from importlib.util import find_spec
files = {{name.partition(".")[0]: getattr(module, "__file__", None) for name, module in sys.modules.items()}}
names = {{name for name, file in files.items() if file and not file.startswith(os.path.dirname(os.__file__))}}
seen = [name for name in ("setproctitle", "orjson", "flask", "google", "tritonclient") if find_spec(name)]
print(json.dumps([sorted(names), seen]))
"""


def test_what_a_worker_imports_and_what_it_could(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "e") / "bin" / "python"
    links = link_packages(tmp_path)
    found = subprocess.run(
        [python, "-s", "-c", _LOOK.format(links=str(links))],
        env=variables_of(python, os.environ), capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported, seen = json.loads(found.stdout)
    assert imported == ["msgpack", "numpy", "shoal", *LIBRARY]
    assert seen == []


def test_the_links_are_made_once(tmp_path: Path) -> None:
    links = link_packages(tmp_path)
    assert link_packages(tmp_path) == links
    assert sorted(os.listdir(tmp_path)) == [links.name]
    files = [name for name in sorted(os.listdir(links)) if not name.startswith(tuple(LIBRARY))]
    assert files == [".behind", "__main__.py", "c_python_backend_utils", "shoal", "triton_python_backend_utils"]
    assert len(files) + len(LIBRARY) == len(os.listdir(links))
    assert os.listdir(links / ".behind") == ["msgpack"]
    assert (links / "shoal").samefile(Path(sys.modules["shoal"].__path__[0]))
