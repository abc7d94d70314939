"""wanted.py: parameters, files beside the model and beside its backend, and which of them counts."""

from pathlib import Path
from typing import Any

import pytest

from shoal.environments.wanted import Wanted, cannot_be_made, is_installation_failure, wanted


def config(backend: str = "python", **parameters: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "repository" / "m" / "1"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    directory = tmp_path / "backends"
    (directory / "mine").mkdir(parents=True)
    (directory / "mine" / "model.py").touch()
    return directory


def test_most_models_want_nothing(version: Path, backends: Path) -> None:
    for backend in ("python", "identity", "mine"):
        assert wanted(version, config(backend), backends, install_requirements=True) is None


def test_parameters(version: Path, backends: Path) -> None:
    parameters = {
        "EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/environment.tar.gz",
        "PYTHON_INTERPRETER": "$$TRITON_MODEL_DIRECTORY/venv/bin/python",
    }
    expected = Wanted(f"{version.parent}/environment.tar.gz", f"{version.parent}/venv/bin/python")
    assert wanted(version, config(**parameters), backends, install_requirements=True) == expected
    assert wanted(version, config("identity", **parameters), backends, install_requirements=True) == expected


def test_requirements_beside_the_version_the_model_or_the_backend(version: Path, backends: Path) -> None:
    for place in (backends / "mine", version.parent, version):
        (place / "requirements.txt").touch()
        found = wanted(version, config("mine"), backends, install_requirements=True)
        assert found == Wanted(requirements=str(place / "requirements.txt"))
    found = wanted(version, config(PYTHON_INTERPRETER="python3"), backends, install_requirements=True)
    assert found == Wanted("", "python3", str(version / "requirements.txt"))


def test_requirements_of_an_environment_or_of_another_backend_are_no_order(version: Path, backends: Path) -> None:
    (version / "requirements.txt").touch()
    found = wanted(version, config(EXECUTION_ENV_PATH="/e"), backends, install_requirements=True)
    assert found == Wanted("/e")
    assert wanted(version, config("identity"), backends, install_requirements=True) is None
    assert wanted(version, config(), backends, install_requirements=False) is None


def test_the_archive_of_a_backend_is_for_models_that_say_nothing(version: Path, backends: Path) -> None:
    archive = backends / "mine" / "pb_exec_env_model.py.tar.gz"
    archive.touch()
    assert wanted(version, config("mine"), backends, install_requirements=True) == Wanted(str(archive))
    own = config("mine", EXECUTION_ENV_PATH="/own")
    assert wanted(version, own, backends, install_requirements=True) == Wanted("/own")
    assert wanted(version, config("python"), backends, install_requirements=True) is None


def test_an_archives_own_requirements_beside_the_servers_packages(version: Path, backends: Path) -> None:
    found = wanted(version, config("torchserve", ts_requirements="r.txt"), backends, install_requirements=True)
    assert found == Wanted(requirements=str(version / "r.txt"), inherits=True)
    found = wanted(version, config("torchserve", ts_requirements="../../r.txt"), backends, install_requirements=True)
    assert found == Wanted(requirements=str(version / "r.txt"), inherits=True)
    for install, name in ((False, "r.txt"), (True, "")):
        assert (
            wanted(version, config("torchserve", ts_requirements=name), backends, install_requirements=install) is None
        )
    assert wanted(version, config("python", ts_requirements="r.txt"), backends, install_requirements=True) is None


def test_an_installation_that_has_failed_is_recognised_in_a_longer_sentence() -> None:
    sentence = cannot_be_made("'/r.txt'", "pip", "no such package")
    assert is_installation_failure(sentence)
    assert is_installation_failure(f"load failed for model 'm': {sentence}")
    assert not is_installation_failure("the environment of the handler is wrong")
