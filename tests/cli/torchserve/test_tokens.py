"""key_file.json: its form, its keys, its rights."""

import json
import re
from datetime import datetime
from pathlib import Path

from shoal.cli.torchserve.tokens import write_keys


def test_keys_are_written_for_this_user_only_and_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "key_file.json"
    file.write_text("{}")
    file.chmod(0o644)
    write_keys(file, datetime(2026, 11, 28, 12, 0), 60)
    first = json.loads(file.read_text())
    assert {kind: key.get("expiration time") for kind, key in first.items()} == {
        "management": "2026-11-28T13:00:00", "inference": "2026-11-28T13:00:00", "API": None,
    }  # fmt: skip
    assert all(re.fullmatch("[A-Za-z0-9_-]{8}", key["key"]) for key in first.values())
    assert file.stat().st_mode & 0o777 == 0o600
    write_keys(file, datetime(2026, 11, 28, 12, 0), 60)
    assert {key["key"] for key in json.loads(file.read_text()).values()}.isdisjoint(
        key["key"] for key in first.values()
    )
    assert [each.name for each in tmp_path.iterdir()] == ["key_file.json"]
