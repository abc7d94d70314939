"""One file that is always JSON, files with an index, and what is continued."""

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from shoal.tracer.trace_file import TraceFile

LONG_AGO, SINCE = 1e9, 2e9
A, B, C = b'{"id":1}', b'{"id":2},{"id":3}', b'{"id":4}'


def ids(path: Path) -> list[int]:
    return [each["id"] for each in json.loads(path.read_text())]


def written(path: Path, text: str, at_s: float) -> None:
    path.write_text(text)
    os.utime(path, (at_s, at_s))


def test_the_one_file_is_json_after_every_write(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    assert not list(tmp_path.iterdir())
    for traces, expected in ([A], [1]), ([B, C], [1, 2, 3, 4]), ([A], [1, 2, 3, 4, 1]):
        file.append(traces)
        assert ids(tmp_path / "t.json") == expected


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    before = os.umask(0)
    try:
        file.append([A])
        file.write_indexed([B])
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()] == [0o600, 0o600]


def test_files_with_an_index(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    file.write_indexed([A, B])
    file.write_indexed([C])
    file.append([C])
    assert [ids(tmp_path / f"t.json{end}") for end in (".0", ".1", "")] == [[1, 2, 3], [4], [4]]


def test_what_an_earlier_server_wrote_is_overwritten(tmp_path: Path) -> None:
    for name in ("t.json", "t.json.0", "t.json.7"):
        written(tmp_path / name, "[{}]", LONG_AGO)
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    file.append([A])
    file.write_indexed([C])
    assert (ids(tmp_path / "t.json"), ids(tmp_path / "t.json.0")) == ([1], [4])


def test_what_an_earlier_tracer_of_this_server_wrote_is_continued(tmp_path: Path) -> None:
    written(tmp_path / "t.json.9", "[{}]", LONG_AGO)
    for name in ("t.json", "t.json.3", "t.json.x", "tajson.8"):
        written(tmp_path / name, '[{"id":0}]', SINCE + 1)
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    file.append([A])
    file.write_indexed([C])
    assert (ids(tmp_path / "t.json"), ids(tmp_path / "t.json.4")) == ([0, 1], [4])


def test_a_file_whose_maker_was_killed_before_it_wrote_is_begun(tmp_path: Path) -> None:
    written(tmp_path / "t.json", "", SINCE + 1)
    file = TraceFile(str(tmp_path / "t.json"), SINCE)
    file.append([A])
    file.append([C])
    assert ids(tmp_path / "t.json") == [1, 4]


def test_what_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    file = TraceFile(str(tmp_path / "none" / "t.json"), SINCE)
    file.append([A])
    file.write_indexed([A])
    (tmp_path / "none").mkdir()
    file.append([C])
    assert ids(tmp_path / "none" / "t.json") == [4]
    told = [record.getMessage().partition(": ")[0] for record in caplog.records]
    assert told == ["failed creating trace file"] * 2
