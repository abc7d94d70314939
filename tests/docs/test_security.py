"""docs/security.md: its table has every door, and the keys that it makes open what it says."""

import json
import re
from pathlib import Path

from shoal.api_keys import parse_keys
from shoal.frontend.access.doors import DOORS
from tests.end_to_end.command_line import run_here

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_table_has_every_door() -> None:
    _, table = PAGE.read_text().split("| API | door | scope |")
    rows = re.findall(r"^\| (\S+) \| `(.*)` \| (.*) \|$", table, re.MULTILINE)
    assert rows == [(api, door, scope.value) for api, doors in DOORS.items() for door, scope in doors.items()]


def test_its_file_of_keys_is_one() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (key,) = parse_keys(example.encode())
    assert (key.name, key.scopes, key.models) == ("shop", ("infer",), ("resnet*",))


def test_its_commands_make_keys(tmp_path: Path) -> None:
    commands = re.findall(r"^shoal (key .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = [word.strip("'") for word in command.split()]
        assert run_here(*words, folder=tmp_path).returncode == 0
    keys = parse_keys((tmp_path / "keys.json").read_bytes())
    assert [(key.name, key.scopes, key.models) for key in keys] == [
        ("shop", ("infer",), ("resnet*",)), ("deploy", ("admin",), ("*",)), ("prometheus", ("metrics",), ("*",)),
    ]  # fmt: skip
    assert json.loads((tmp_path / "keys.json").read_bytes()).keys() == {"shop", "deploy", "prometheus"}
