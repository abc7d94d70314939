"""`shoal samples`: the sample models, complete, in a directory that was not there."""

from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.samples import copy_models

SAMPLES = Path(__file__).parents[2] / "model_repository"


def test_the_samples_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "models"
    assert main(["samples", str(directory)]) == 0
    models = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
    assert capsys.readouterr().out == (
        f"Wrote {len(models)} models into {directory}\nServe them:  shoal serve {directory}\n"
    )
    assert sorted(path.name for path in directory.iterdir()) == sorted([*models, "README.md"])
    assert (directory / "digits" / "1" / "model.onnx").read_bytes() == (SAMPLES / "digits/1/model.onnx").read_bytes()
    assert main(["check", "--strict", str(directory)]) == 0


def test_a_model_without_a_file_gets_its_version_directory(tmp_path: Path) -> None:
    (tmp_path / "from" / "echo").mkdir(parents=True)
    (tmp_path / "from" / "echo" / "config.pbtxt").write_text('backend: "identity"')
    (tmp_path / "from" / "README.md").write_text("")
    copy_models(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "echo" / "1").is_dir()
    assert not list((tmp_path / "to" / "echo" / "1").iterdir())
