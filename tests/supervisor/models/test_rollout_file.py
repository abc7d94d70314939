"""The file in which rollouts are kept."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.rollout_settings import read_plan
from shoal.supervisor.models.rollout_file import Kept, RolloutFile, default_path

KEPT = Kept("m", "", read_plan({"version": 3, "sticky_header": "x-user"}), 2, 1, "running", "")


def test_what_was_written_is_read_by_a_server_of_the_same_repositories(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rollouts.json"
    file = RolloutFile(path, [Path("/models"), Path("/more")])
    assert file.read() == []
    file.write([KEPT])
    file.write([KEPT, KEPT._replace(name="n", phase="rolled back", reason="it fails")])
    assert [each.name for each in path.parent.iterdir()] == ["rollouts.json"], "nothing is left beside it"
    assert RolloutFile(path, ["/more", "/models"]).read() == file.read()
    assert [each.reason for each in file.read()] == ["", "it fails"]
    assert RolloutFile(path, ["/others"]).read() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda said: "{",
        lambda said: "[]",
        lambda said: json.dumps({**said, "version": 2}),
        lambda said: json.dumps({**said, "rollouts": [{}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "phase": "lost"}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "step": -1}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "stable": "2"}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "plan": {"version": 0}}]}),
    ],
)
def test_a_damaged_file_is_logged_and_left_out(
    tmp_path: Path, damage: Callable[[dict[str, Any]], str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.json"
    RolloutFile(path).write([KEPT])
    path.write_text(damage(json.loads(path.read_text())))
    with caplog.at_level(logging.ERROR):
        assert RolloutFile(path).read() == []
    assert f"rollouts of before cannot be read from {path}" in caplog.text


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("a file, not a directory")
    with caplog.at_level(logging.ERROR):
        RolloutFile(tmp_path / "state" / "rollouts.json").write([KEPT])
    assert "a restart forgets them" in caplog.text


def test_the_file_lies_in_the_state_directory_of_systemd_or_of_the_user() -> None:
    assert default_path({"STATE_DIRECTORY": "/var/lib/shoal:/x"}, 8000) == Path("/var/lib/shoal/rollouts-8000.json")
    assert default_path({"XDG_STATE_HOME": "/s"}, 8001) == Path("/s/shoal/rollouts-8001.json")
    assert default_path({"XDG_STATE_HOME": "relative"}, 8001) == Path.home() / ".local/state/shoal/rollouts-8001.json"
    assert default_path({}, 0) is None
