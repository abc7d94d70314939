"""Archives of torch-model-archiver itself, in each of its formats, are read unchanged."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.repository.torchserve.configuration import Machine, StoreRequest
from shoal.repository.torchserve.store import TorchServeStore
from shoal.store_settings import StoreSettings
from tests.repository.torchserve.archives import HANDLER

_ARCHIVER = "from model_archiver.model_packaging import generate_model_archive; generate_model_archive()"


@pytest.mark.parametrize("form", ["default", "zip-store", "tgz", "no-archive"])
def test_an_archive_of_each_format(form: str, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    (sources / "extra" / "deep").mkdir(parents=True)
    for name, text in {
        "handler.py": HANDLER, "weights.pt": "w", "extra/index_to_name.json": "{}", "extra/deep/more.txt": "m",
        "requirements.txt": "", "model-config.yaml": "minWorkers: 2\nmaxWorkers: 3\nbatchSize: 5\n",
    }.items():  # fmt: skip
        (sources / name).write_text(text)
    (tmp_path / "store").mkdir()
    files = {"handler": "handler.py", "serialized-file": "weights.pt", "extra-files": "extra",
             "requirements-file": "requirements.txt", "config-file": "model-config.yaml"}  # fmt: skip
    command = [sys.executable, "-c", _ARCHIVER, "--model-name", "real", "--version", "1.2", "--archive-format", form]
    command += ["--export-path", str(tmp_path / "store")]
    for flag, name in files.items():
        command += [f"--{flag}", str(sources / name)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (made,) = (tmp_path / "store").iterdir()
    store = TorchServeStore(StoreSettings(tmp_path / "store"), tmp_path / "slot" / "1", Machine(1, ()))
    found = store.register(StoreRequest(made.name))
    said = {key: value["string_value"] for key, value in found.config["parameters"].items()}
    assert (found.name, said["ts_version"], said["ts_handler"]) == ("real", "1.2", "handler.py")
    assert (said["ts_min_workers"], found.config["max_batch_size"]) == ("2", 5)
    assert said["ts_config_file"] == "model-config.yaml"
    (version,) = found.versions.values()
    assert (version.directory / "weights.pt").read_text() == "w"
    assert (version.directory / "index_to_name.json").read_text() == "{}"
    assert (version.directory / "deep" / "more.txt").read_text() == "m"
