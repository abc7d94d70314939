"""resolve.py: directories, archives and interpreters to environments; what is missing is said.

What takes long, to install a requirements.txt, is done by tests/end_to_end/test_environments.py.
"""

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.environments.cache import Cache
from shoal.environments.interpreter import ask
from shoal.environments.resolve import Environment, _installers, resolve
from shoal.environments.wanted import Wanted
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from tests.environments.places import make_venv, pack


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def found(cache: Cache, **wanted: Any) -> Environment:
    return resolve(Wanted(**wanted), cache, os.environ, print)


def refused(cache: Cache, **wanted: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        found(cache, **wanted)
    return caught.value


def test_an_unpacked_directory(tmp_path: Path, cache: Cache) -> None:
    directory = make_venv(tmp_path / "e")
    environment = found(cache, execution_env=str(directory))
    assert environment[::2] == (directory / "bin" / "python", directory)
    assert environment.variables["VIRTUAL_ENV"] == str(directory)
    assert not cache.root.exists()


def test_a_relative_path_counts_from_the_working_directory(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_venv(tmp_path / "e")
    monkeypatch.chdir(tmp_path)
    assert found(cache, execution_env="e").directory == tmp_path / "e"


def test_an_interpreter_by_path_and_by_name(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_venv(tmp_path / "e") / "bin" / "python"
    assert found(cache, interpreter=str(python)).directory == tmp_path / "e"
    (python.parent / "python-of-this-test").symlink_to(python)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    assert found(cache, interpreter="python-of-this-test").directory == tmp_path / "e"


def test_an_archive_is_unpacked_once_and_put_right(tmp_path: Path, cache: Cache) -> None:
    directory = make_venv(tmp_path / "e", copies=True)
    (directory / "bin" / "conda-unpack").write_text(
        "import os, sys\n"
        "print('putting right', sys.prefix)\n"
        "open('unpacked', 'a').write(f\"{sys.prefix} {os.environ['VIRTUAL_ENV']}\\n\")\n"
    )
    archive = pack(directory, tmp_path / "environment.tar.gz")
    environment = found(cache, execution_env=str(archive))
    assert environment.directory.is_relative_to(cache.root)
    assert environment.interpreter == environment.directory / "bin" / "python"
    place = str(environment.directory)
    assert (environment.directory / "unpacked").read_text() == f"{place} {place}\n"
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "other-name"
    copy.write_bytes(archive.read_bytes())
    assert found(cache, execution_env=str(copy)) == environment
    assert (environment.directory / "unpacked").read_text() == f"{place} {place}\n"


def test_an_archive_whose_script_fails_is_not_kept(tmp_path: Path, cache: Cache) -> None:
    directory = make_venv(tmp_path / "e", copies=True)
    (directory / "bin" / "conda-unpack").write_text("raise SystemExit('it does not fit')")
    archive = pack(directory, tmp_path / "environment.tar.gz")
    error = refused(cache, execution_env=str(archive))
    assert isinstance(error, InternalError)
    assert str(error).startswith(f"the environment of archive '{archive}' cannot be made: ")
    assert str(error).endswith("failed with\nit does not fit")
    assert [each.name for each in cache.root.iterdir() if each.is_dir()] == ["digests"]


def test_an_installer_and_its_children_end_with_who_has_started_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    script = (
        "from pathlib import Path; from shoal.environments.resolve import _run; "
        "_run(['sh', '-c', 'sleep 60 & echo $! > pid; wait'], Path('.'), {'PATH': '/usr/bin:/bin'}, '', print)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as started:
        end = os.pidfd_open(int((tmp_path / "pid").read_text()))
        started.kill()
    assert select.select([end], [], [], 20)[0]
    os.close(end)


def test_what_is_not_there_or_not_enough(tmp_path: Path, cache: Cache) -> None:
    nowhere = tmp_path / "nowhere"
    assert str(refused(cache, execution_env=str(nowhere))) == f"EXECUTION_ENV_PATH '{nowhere}' does not exist"
    assert str(refused(cache, execution_env="/" + 300 * "a")).endswith("aaa': File name too long")
    assert "there is no bin/python in" in str(refused(cache, execution_env=str(tmp_path)))
    assert str(refused(cache, interpreter="no-such-python")) == "PYTHON_INTERPRETER 'no-such-python' is no program"
    assert "are both set" in str(refused(cache, interpreter="python", execution_env="/e"))
    directory = make_venv(tmp_path / "e", has_numpy=False)
    error = refused(cache, execution_env=str(directory))
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == (
        f"there is no numpy in the environment '{directory}', and a worker needs it; install it there"
    )


def test_who_installs(tmp_path: Path) -> None:
    """uv where it is there; else a pip that can do it for others; else one in the environment itself."""
    target, variables = tmp_path / "new", {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    python = f"{target}/bin/python"
    ours = ask(Path(sys.executable), variables)
    create, install = _installers(ours, target, variables)
    assert create == [sys.executable, "-m", "venv", str(target), "--without-pip"]
    assert install[:3] == [sys.executable, "-m", "pip"]
    assert install[-3:] == ["--python", python, "install"]
    bare = make_venv(tmp_path / "bare") / "bin" / "python"
    create, install = _installers(ask(bare, variables), target, variables)
    assert create == [str(bare), "-m", "venv", str(target)]
    assert (install[0], install[-1]) == (python, "install")
    (tmp_path / "uv").touch(0o755)
    create, install = _installers(ours, target, variables)
    assert create == [f"{tmp_path}/uv", "venv", "--allow-existing", "--python", sys.executable, str(target)]
    assert install == [f"{tmp_path}/uv", "pip", "install", "--python", python]
