"""Colours on a terminal, and nowhere else."""

import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from shoal.cli import check, doctor, models
from shoal.cli.colour import BAD, GOOD, NOTE, coloured, is_wanted


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A real terminal, on which colours are wanted."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        yield stream
    os.close(master)


def painted(word: str, colour: str) -> str:
    return f"\x1b[{colour}m{word}\x1b[0m"


def test_a_group_or_all_that_matches_is_coloured(terminal: TextIO) -> None:
    assert coloured("one two one", {"one": GOOD}, terminal) == f"{painted('one', GOOD)} two {painted('one', GOOD)}"
    assert coloured("one two", {"one (two)": BAD}, terminal) == f"one {painted('two', BAD)}"


def test_findings_states_and_rows_have_theirs(terminal: TextIO) -> None:
    finding = "m/error: x/config.pbtxt:3: warning: no error: here"
    assert coloured(finding, check._COLOURS, terminal) == finding.replace("warning", painted("warning", NOTE))
    rows = "STATE  SUBJECT  FOUND\nok     shoal    ok\nBAD    port     8000"
    expected = f"STATE  SUBJECT  FOUND\n{painted('ok', GOOD)}     shoal    ok\n{painted('BAD', BAD)}    port     8000"
    assert coloured(rows, doctor._COLOURS, terminal) == expected
    index = (
        "NAME   VERSION  STATE        INSTANCES  REASON\n"
        "READY  1        UNAVAILABLE  -          not READY\n"
        "b c    -        READY"
    )
    assert coloured(index, models._COLOURS, terminal) == (
        "NAME   VERSION  STATE        INSTANCES  REASON\n"
        f"READY  1        {painted('UNAVAILABLE', BAD)}  -          not READY\n"
        f"b c    -        {painted('READY', GOOD)}"
    )


def test_none_elsewhere_and_none_where_they_are_not_wanted(terminal: TextIO) -> None:
    assert is_wanted(terminal, {})
    assert not is_wanted(terminal, {"NO_COLOR": "1"})
    assert not is_wanted(terminal, {"TERM": "dumb"})
    with open(os.devnull, "w") as file:
        assert coloured("one", {"one": GOOD}, file) == "one"
