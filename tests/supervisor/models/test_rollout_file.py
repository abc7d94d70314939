"""The file in which rollouts are kept."""

import json
import logging
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.rollout_settings import read_plan
from shoal.supervisor.models.rollout_file import ROLLOUTS, SavedRollout
from shoal.supervisor.models.rollout_file import rollout_file as file_at
from shoal.supervisor.state_file import MAX_NBYTES, state_path
from tests.scarcity import files_of_at_most_a_page

KEPT = SavedRollout("m", "", read_plan({"version": 3, "sticky_header": "x-user"}), 2, 1, "running", "")


def test_what_was_written_is_read_by_a_server_of_the_same_repositories(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rollouts.json"
    file = file_at(path, [Path("/models"), Path("/more")])
    assert file.read() == []
    file.write([KEPT])
    file.write([KEPT, KEPT._replace(name="n", phase="rolled back", reason="it fails")])
    assert [each.name for each in path.parent.iterdir()] == ["rollouts.json"], "nothing is left beside it"
    assert file_at(path, ["/more", "/models"]).read() == file.read()
    assert [each.reason for each in file.read()] == ["", "it fails"]
    assert file_at(path, ["/others"]).read() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda said: "{",
        lambda said: "[]",
        lambda said: "[" * 100_000,
        lambda said: json.dumps({**said, "rollouts": {}}),
        lambda said: " " * MAX_NBYTES + "{}",
        lambda said: json.dumps({**said, "version": 2}),
        lambda said: json.dumps({**said, "rollouts": [{}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "phase": "lost"}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "step": -1}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "stable": "2"}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "plan": {"version": 0}}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "plan": {"version": 1 << 64}}]}),
        lambda said: json.dumps({**said, "rollouts": [{**said["rollouts"][0], "plan": [1]}]}),
        lambda said: json.dumps({**said, "rollouts": [[]]}),
    ],
)
def test_a_damaged_file_is_logged_and_left_out(
    tmp_path: Path, damage: Callable[[dict[str, Any]], str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.json"
    file_at(path).write([KEPT])
    path.write_text(damage(json.loads(path.read_text())))
    with caplog.at_level(logging.ERROR):
        assert file_at(path).read() == []
    assert f"rollouts of before cannot be read from {path}" in caplog.text


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("a file, not a directory")
    with caplog.at_level(logging.ERROR):
        file_at(tmp_path / "state" / "rollouts.json").write([KEPT])
    assert "a restart forgets them" in caplog.text


def test_a_row_that_is_none_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    file_at(path).write([KEPT, KEPT._replace(name="n")])
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "rollouts": [{"name": "m"}, *said["rollouts"]]}))
    assert [each.name for each in file_at(path).read()] == ["m", "n"]


def test_a_file_in_another_format_is_set_aside_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    path.write_text('{"version": 1, "rollouts": [{"name"')
    assert file_at(path).read() == []
    file_at(path).write([KEPT])
    assert file_at(path).read() == [KEPT]
    assert (tmp_path / "rollouts.json.damaged").read_text().endswith('{"name"')


def test_a_pipe_in_its_place_delays_no_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "rollouts.json")
    assert file_at(tmp_path / "rollouts.json").read() == []
    assert "it is not a regular file" in caplog.text


def test_what_cannot_be_written_whole_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    file_at(path).write([KEPT])
    with files_of_at_most_a_page():
        file_at(path).write([KEPT._replace(name="m" * 10_000)])
    assert file_at(path).read() == [KEPT]
    assert [each.name for each in tmp_path.iterdir()] == ["rollouts.json"]


def test_a_user_without_a_home_directory_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert state_path("", {}, 8000, ROLLOUTS) is None


def test_the_file_lies_where_the_flag_says_or_in_the_state_directory_of_systemd_or_of_the_user() -> None:
    def path(environ: dict[str, str], port: int) -> Path | None:
        return state_path("", environ, port, ROLLOUTS)

    assert path({"STATE_DIRECTORY": "/var/lib/shoal:/x"}, 8000) == Path("/var/lib/shoal/rollouts-8000.json")
    assert path({"XDG_STATE_HOME": "/s"}, 8001) == Path("/s/shoal/rollouts-8001.json")
    assert path({"XDG_STATE_HOME": "relative"}, 8001) == Path.home() / ".local/state/shoal/rollouts-8001.json"
    assert path({}, 0) is None
    assert state_path("here", {}, 0, ROLLOUTS) == Path("here").absolute()
