"""The table that the check writes, and that the page has all lines of the bar."""

import importlib

import pytest

from tests.reliability.__main__ import is_failure
from tests.reliability.row import Kind, Line, Row
from tests.reliability.rows import ROWS
from tests.reliability.table import BEGIN, END, PAGE, Measured, cells, written

ROW = Row("death", "deaths:run", 1, 1, {"told": Line("an answer", "500"), "time": Line("how soon", "1 s", Kind.FIGURE)})
EMPTY = f"before\n{BEGIN}\n{END}\nafter\n"


def test_a_line_that_was_not_measured_keeps_its_figure() -> None:
    first = written(EMPTY, (ROW,), {("death", "told"): Measured("8 of 8", True, "Monday")})
    assert "| an answer | 500 | 8 of 8 | yes | Monday |" in first
    assert "| how soon | 1 s | not yet |" in first
    second = written(first, (ROW,), {("death", "time"): Measured("2 | 3 s", False, "Tuesday")})
    assert "| an answer | 500 | 8 of 8 | yes | Monday |" in second
    assert "| how soon | 1 s | 2 \\| 3 s | no | Tuesday |" in second
    assert second.startswith("before\n")
    assert second.endswith(f"{END}\nafter\n")


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        written("nothing", (ROW,), {})


@pytest.mark.parametrize(
    ("key", "is_met", "fails"),
    [("told", True, False), ("told", False, True), ("told", None, True), ("time", False, False), ("time", None, True)],
)
def test_facts_and_what_was_not_measured_fail_the_check(key: str, is_met: bool | None, fails: bool) -> None:
    assert is_failure(ROW, key, Measured("", is_met)) is fails


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_its_function(row: Row) -> None:
    module, _, function = row.function.partition(":")
    assert callable(getattr(importlib.import_module(f"tests.reliability.{module}"), function))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_page_has_every_line(row: Row) -> None:
    page = PAGE.read_text()
    for line in row.lines.values():
        assert cells(line.what, line.bar)[:-1] in page
