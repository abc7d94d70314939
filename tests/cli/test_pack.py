"""`shoal pack`: its archives are read as the store reads any, and a wrong command changes nothing."""

import os
import zipfile
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.repository.torchserve.configuration import Machine, StoreRequest
from shoal.repository.torchserve.store import TorchServeStore
from shoal.store_settings import StoreSettings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with sources, and a store."""
    for name in ("store", "extra/deep", "extra/.git", "extra/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "h.py",
        "w.pt",
        "c.yaml",
        "r.txt",
        "extra/a.json",
        "extra/deep/b",
        "extra/.git/x",
        "extra/__pycache__/y",
    ):
        (tmp_path / name).write_text("minWorkers: 1\nmaxWorkers: 1\n" if name == "c.yaml" else name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = ["pack", "--model-name", "m", "--version", "1.5", "--export-path", "store", "--handler"]


def test_an_archive_is_packed_and_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--serialized-file", "w.pt", "--extra-files", "extra", "-r", "r.txt", "-c", "c.yaml"]
    assert main([*ALL, "h.py:serve", *files]) == 0
    assert capsys.readouterr().out == "Wrote store/m.mar\n"
    with zipfile.ZipFile("store/m.mar") as archive:
        assert sorted(archive.namelist()) == [
            "MAR-INF/MANIFEST.json", "a.json", "c.yaml", "deep/b", "h.py", "r.txt", "w.pt",
        ]  # fmt: skip
    store = TorchServeStore(StoreSettings(here / "store"), here / "slot" / "1", Machine(1, ()))
    said = store.register(StoreRequest("m.mar")).config["parameters"]
    assert said["ts_handler"]["string_value"] == "h.py:serve"
    assert said["ts_version"]["string_value"] == "1.5"
    assert said["ts_min_workers"]["string_value"] == "1"


def test_files_of_before_1980_are_packed(here: Path) -> None:
    os.utime(here / "h.py", (0, 0))
    assert main([*ALL, "h.py"]) == 0
    with zipfile.ZipFile("store/m.mar") as archive:
        assert archive.getinfo("h.py").date_time == (1980, 1, 1, 0, 0, 0)


def test_a_built_in_handler_is_named_and_not_packed() -> None:
    assert main([*ALL, "image_classifier"]) == 0
    with zipfile.ZipFile("store/m.mar") as archive:
        assert archive.namelist() == ["MAR-INF/MANIFEST.json"]


def test_a_handler_is_found_without_its_ending_also_among_further_files(here: Path) -> None:
    assert main([*ALL, "h:serve"]) == 0
    with zipfile.ZipFile("store/m.mar") as archive:
        assert archive.namelist() == ["h.py", "MAR-INF/MANIFEST.json"]
    (here / "extra" / "own.py").write_text("")
    assert main([*ALL, "own", "--extra-files", "extra", "--force"]) == 0


def test_an_archive_without_its_handler_is_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ALL, "image_clasifier"]) == 1
    told = capsys.readouterr().err
    assert "There is no file 'image_clasifier.py' for --handler, and none of the built-in handlers has" in told
    assert "image_classifier" in told
    assert not (here / "store" / "m.mar").exists()


def test_an_archive_is_replaced_only_by_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "store" / "m.mar").write_text("old")
    assert main([*ALL, "h.py"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert (here / "store" / "m.mar").read_text() == "old"
    assert main([*ALL, "h.py", "--force"]) == 0
    assert zipfile.is_zipfile(here / "store" / "m.mar")
