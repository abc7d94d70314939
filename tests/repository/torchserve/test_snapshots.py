"""Snapshots as files: what is in them, who reads them, and how many there are."""

import json
from pathlib import Path

import pytest

from shoal.cli.torchserve.properties import parse_properties
from shoal.errors import InternalError
from shoal.repository.torchserve import snapshots
from shoal.repository.torchserve.snapshots import write_snapshot

MODELS = {"m": {"1.0": {"marName": "m\u20ac.mar", "minWorkers": 2}}, "n": {"1": {}, "2": {}}}


def test_a_snapshot_is_a_properties_file_with_its_models(tmp_path: Path) -> None:
    directory = tmp_path / "logs" / "config"
    write_snapshot(directory, "20260101000000000-startup.cfg", "model_store=s\n", json.dumps(MODELS))
    (written,) = directory.iterdir()
    assert written.stat().st_mode & 0o777 == 0o600
    values = parse_properties(written.read_bytes())
    snapshot = json.loads(values.pop("model_snapshot"))
    assert values == {"model_store": "s"}
    assert snapshot == {"name": written.name, "modelCount": 3, "models": MODELS}


def test_old_changes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    others = ["20200101000000000-startup.cfg", "20200101000000000-shutdown.cfg", "mine-snapshot.cfg"]
    for name in others:
        (tmp_path / name).touch()
    names = [f"202601010000000{number:02}-snapshot.cfg" for number in range(snapshots.MAX_CHANGES + 2)]
    for name in names:
        write_snapshot(tmp_path, name, "", "{}")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, *names[2:]])


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(InternalError, match="cannot be written: Not a directory; start with --no-config-snapshots"):
        write_snapshot(tmp_path / "logs" / "config", "a-startup.cfg", "", "{}")
