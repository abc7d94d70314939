"""python_backends.py: which names are directories with a model.py, and what runs them."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.load import read_config
from shoal.model_config.python_backends import python_backend_file, runs_on


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    directory = tmp_path / "backends"
    for name in ("mine", "identity", "..", "empty"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for place in ("mine", "identity", ".."):
        (directory / place / "model.py").touch()
    return directory


def test_the_file_of_a_backend(backends: Path) -> None:
    assert python_backend_file("mine", backends) == backends / "mine" / "model.py"
    for name in ("identity", "..", ".", "", "mine/../mine", "empty", "absent"):
        assert python_backend_file(name, backends) is None, name
    assert python_backend_file("mine", None) is None


def test_what_runs_it() -> None:
    assert runs_on({"backend": "mine"}) == "python"
    assert runs_on({"backend": "identity"}) == "identity"


def model(tmp_path: Path, text: str) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "config.pbtxt").write_text(text)
    return directory


@pytest.mark.parametrize("runtime", ["", 'runtime: "model.py"'])
def test_a_model_may_name_it(tmp_path: Path, backends: Path, runtime: str) -> None:
    directory = model(tmp_path, f'backend: "mine" {runtime}')
    config = read_config(directory, backend_directory=backends)
    assert (config["backend"], config["default_model_filename"]) == ("mine", "")


def test_others_are_refused(tmp_path: Path, backends: Path) -> None:
    directory = model(tmp_path, 'backend: "empty"')
    with pytest.raises(InvalidArgumentError, match="unable to find backend library for backend 'empty'"):
        read_config(directory, backend_directory=backends)
    (directory / "config.pbtxt").write_text('backend: "mine" runtime: "other.py"')
    with pytest.raises(UnsupportedError, match=r"unable to find backend library 'other\.py'"):
        read_config(directory, backend_directory=backends)
