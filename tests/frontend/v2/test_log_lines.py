"""The last lines of the log file: what a reader gets first, what comes later, and what is no file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.frontend.state import ServerState
from shoal.frontend.v2.debug import MAX_CHARACTERS, MAX_READ_BYTES, log_lines
from tests.frontend.calls import call_of


def told(path: Path | str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        b"".join(log_lines(call_of(ServerState(log_file=str(path)), query=query)).chunks)
    )
    return found


def test_the_last_lines_and_then_those_that_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(500)) + "unfini")
    first = told(path)
    assert first["log_file"] == str(path)
    assert (first["lines"][0], first["lines"][-1], len(first["lines"])) == ("line 300", "line 499", 200)
    assert first["is_cut"]
    after = f"after={first['position']}"
    assert told(path, after) == {"log_file": str(path), "lines": [], "position": first["position"], "is_cut": False}
    with path.open("a") as log:
        log.write("shed\nlast\n")
    later = told(path, after)
    assert (later["lines"], later["position"]) == (["unfinished", "last"], path.stat().st_size)
    assert told(path, "lines=2&after=0")["lines"] == ["unfinished", "last"]


def test_a_file_that_was_cut_short_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\n")
    assert told(path, "after=999") == {"log_file": str(path), "lines": ["one"], "position": 4, "is_cut": False}


def test_no_more_is_read_than_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes((b"x" * 99 + b"\n") * (MAX_READ_BYTES // 50))
    found = told(path, "lines=1000")
    assert {len(line) for line in found["lines"]} == {99}  # the first one is not read from its middle
    assert found["is_cut"]
    path.write_bytes(b"\xff\x1b[2J" + b"y" * 2 * MAX_CHARACTERS + b"\n")
    (line,) = told(path)["lines"]
    assert line.startswith("\N{REPLACEMENT CHARACTER}\x1b[2J")
    assert len(line) == MAX_CHARACTERS + 2


def test_no_file_is_said_in_words(tmp_path: Path) -> None:
    found = told("")
    assert (found["log_file"], found["lines"]) == ("", [])
    assert found["note"].startswith("this server writes no log file: start it with --log-file=<path>")
    with pytest.raises(UnavailableError, match=f"the log file '{tmp_path}/no' cannot be read: No such file"):
        told(tmp_path / "no")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert told(tmp_path / "pipe")["lines"] == []


@pytest.mark.parametrize("query", ["lines=0", "lines=1001", "lines=x", "lines=-1", "after=-1", "after=1e9", "lines="])
def test_wrong_numbers_are_refused(tmp_path: Path, query: str) -> None:
    (tmp_path / "log").write_text("")
    with pytest.raises(InvalidArgumentError, match="is a number from"):
        told(tmp_path / "log", query)
