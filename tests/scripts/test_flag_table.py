"""The tables of flags in docs/migrate-from-triton.md are those of the command line."""

import re

import pytest

from scripts.flag_table import PAGE, TRITON, page, tables
from shoal.cli.flags import FLAGS, honour, ignore
from shoal.cli.values import BOOLEAN


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == page(text), "a flag has moved: run `python scripts/flag_table.py`"


def test_every_flag_is_in_the_tables_once() -> None:
    listed = re.findall(
        r"`--([a-z0-9-]+)`", "\n".join(line.split("|")[1] for line in tables().splitlines() if "`" in line)
    )
    assert sorted(listed) == sorted(flag.name for flag in FLAGS)
    tritons = tables().partition("### Shoal's own")[0]
    assert {name for name in listed if f"`--{name}`" in tritons} == set(TRITON)


def test_a_flag_that_moves_changes_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "| `--fly` | {} | {} |\n"
    for flag, fate, text in [
        (honour("fly", BOOLEAN, "swim", deprecated_for="--swim"), "honoured", "deprecated: use --swim"),
        (ignore("fly", BOOLEAN, True, "fish swim"), "no effect", "fish swim"),
    ]:  # fmt: skip
        monkeypatch.setattr("scripts.flag_table.GROUPS", {"Fish": (flag,)})
        monkeypatch.setattr("scripts.flag_table.TRITON", ["fly"])
        assert tables().startswith("### Fish\n\n| flag | | what becomes of it |\n| --- | --- | --- |\n")
        assert row.format(fate, text) in tables()
