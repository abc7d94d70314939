"""The row of overload hands over every line of its own, whatever became of the requests."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from bench.overload import PATIENCE_S, Outcome
from tests.reliability.overload import LOADS, SHORT_LOADS, Load, report
from tests.reliability.row import RESULT, Course
from tests.reliability.rows import ROWS

LINES = next(set(row.lines) for row in ROWS if row.name == "overload")
PEAK, SECONDS = 50.0, 10.0


def outcome(good: int, refused: int, given_up: int = 0, broken: int = 0) -> Outcome:
    counts = Counter({"good": good, "refused": refused, "given up": given_up, "broken": broken})
    return Outcome(counts, [0.3] * good, [0.01] * refused)


def reported(
    loads: list[Load], live_s: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, tuple[str, bool]]:
    report(Course(tmp_path, is_short=True, seed=1), loads, PEAK, SECONDS, live_s)
    results = [json.loads(line.removeprefix(RESULT)) for line in capsys.readouterr().out.splitlines()]
    return {key: (figure, is_met) for key, figure, is_met in results}


@pytest.mark.parametrize("loads", [LOADS, SHORT_LOADS])
def test_both_forms_have_every_rate_and_clients_of_both_kinds(loads: list[tuple[float, float | None]]) -> None:
    assert {times for times, _ in loads} == {0.9, 2.0, 3.0, 10.0}
    assert {patience_s for _, patience_s in loads} == {PATIENCE_S, None}


def test_every_line_is_handed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = [
        Load(0.9, PATIENCE_S, outcome(420, 3, 7)),
        Load(2.0, PATIENCE_S, outcome(480, 520)),
        Load(10.0, None, outcome(430, 4500)),
    ]
    told = reported(loads, [0.002] * 1000, tmp_path, capsys)
    assert told.keys() == LINES
    assert all(is_met for _, is_met in told.values()), told
    assert told["goodput"][0] == "of 50/s: 0.9 × give up 98%, 2 × give up 96%, 10 × wait 86%"
    assert told["refused"][0] == "p50 10 ms, p99 10 ms of 4,500"
    assert told["live"][0] == "p50 2 ms, p99 2 ms, p99.9 2 ms of 1,000"


def test_no_line_is_met_by_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = [Load(2.0, PATIENCE_S, outcome(0, 0, 1000, 1)), Load(10.0, None, outcome(0, 0))]
    told = reported(loads, [], tmp_path, capsys)
    assert told.keys() == LINES
    assert not any(is_met for _, is_met in told.values()), told


def test_a_live_that_fails_is_not_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = reported([Load(2.0, PATIENCE_S, outcome(500, 1))], [0.001] * 100 + [math.inf], tmp_path, capsys)
    assert told["live"] == ("p50 1 ms, p99 1 ms, p99.9 inf ms of 101", False)
