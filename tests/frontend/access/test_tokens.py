"""frontend/access/tokens.py: which requests a key file admits."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from shoal.frontend.access.tokens import Tokens

NOW = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)


def write(path: Path, inference: str = "inferKEY", minutes: int = 60) -> str:
    expires = (NOW + timedelta(minutes=minutes)).isoformat()
    keys = {
        "management": {"key": "manageKY", "expiration time": expires},
        "inference": {"key": inference, "expiration time": expires},
        "API": {"key": "apiKEY00"},
    }
    path.write_text(json.dumps(keys))
    return str(path)


@pytest.mark.parametrize(
    ("group", "authorization", "admitted"),
    [
        ("inference", "Bearer inferKEY", True),
        ("inference", "bearer inferKEY", True),
        ("health", "Bearer inferKEY", True),
        ("model-repository", "Bearer manageKY", True),
        ("token", "Bearer apiKEY00", True),
        ("token", "Bearer manageKY", False),
        ("token", None, False),
        ("statistics", None, True),
        ("", None, True),
        ("inference", "Bearer manageKY", False),
        ("model-repository", "Bearer inferKEY", False),
        ("inference", "inferKEY", False),
        ("inference", "Bearer ", False),
        ("inference", "Bearer inferKE", False),
        ("inference", "Bearer \u00e4", False),
        ("inference", None, False),
    ],
)
def test_each_route_has_its_key(tmp_path: Path, group: str, authorization: str | None, admitted: bool) -> None:
    tokens = Tokens(write(tmp_path / "key_file.json"))
    headers = {} if authorization is None else {"authorization": authorization}
    assert tokens.admits(group, headers, NOW) is admitted


def test_a_key_expires(tmp_path: Path) -> None:
    tokens = Tokens(write(tmp_path / "keys"))
    assert not tokens.admits("inference", {"authorization": "Bearer inferKEY"}, NOW + timedelta(minutes=60))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    tokens = Tokens(write(tmp_path / "keys"))
    assert tokens.admits("inference", {"authorization": "Bearer inferKEY"}, NOW)
    write(tmp_path / "keys", inference="another-key")
    assert not tokens.admits("inference", {"authorization": "Bearer inferKEY"}, NOW)
    assert tokens.admits("inference", {"authorization": "Bearer another-key"}, NOW)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"inference": 1}', '{"inference": {"key": "inferKEY"}}'])
def test_a_file_that_cannot_be_read_admits_nothing(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    assert not Tokens(str(path)).admits("inference", {"authorization": "Bearer inferKEY"}, NOW)


def test_without_a_file_every_request_is_admitted() -> None:
    assert Tokens("").admits("inference", {}, NOW)
