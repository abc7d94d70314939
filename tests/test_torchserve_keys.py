"""key_file.json: its form, its keys, its rights."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from shoal.torchserve_keys import renew_key, write_keys


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


def test_one_key_is_renewed_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "key_file.json"
    write_keys(file, datetime(2026, 11, 28, 12, 0), 60)
    before = json.loads(file.read_text())
    renew_key(file, "inference", datetime(2026, 11, 28, 12, 30), 60)
    after = json.loads(file.read_text())
    assert after["inference"].pop("key") != before["inference"].pop("key")
    assert after["inference"] == {"expiration time": "2026-11-28T13:30:00"}
    assert {**after, "inference": None} == {**before, "inference": None}
    assert file.stat().st_mode & 0o777 == 0o600


def test_renewals_at_once_lose_none(tmp_path: Path) -> None:
    """Of several processes, which share no lock but that of the file system; a thread each stands for them."""
    file, now = tmp_path / "key_file.json", datetime(2026, 11, 28, 12, 0)
    write_keys(file, now, 60)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(50):
            before = json.loads(file.read_text())
            both = [threads.submit(renew_key, file, kind, now, 60) for kind in ("management", "inference")]
            for each in both:
                each.result()
            after = json.loads(file.read_text())
            assert [kind for kind in before if before[kind] == after[kind]] == ["API"]


def test_a_file_that_is_no_object_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "key_file.json"
    for text in ("[]", "{"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"no JSON object|Expecting"):
            renew_key(file, "inference", datetime(2026, 11, 28, 12, 0), 60)
        assert file.read_text() == text
