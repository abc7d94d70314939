"""Help on a terminal that is narrower than the help is written."""

import re

import pytest

from shoal.cli import _VERBS, main
from shoal.cli.help_text import fitted

HELP = """\
Usage: shoal swim <where> [options]

Swim to a place, and come back when the tide turns. The way is the
shortest that the current allows.

Examples:
  shoal swim reef      # and back again before dusk
  shoal swim reef --with-all-that-the-command-needs-in-one-line

Options:
  --depth <metres>     the depth, of which less is
                       warmer
  --kind cod|eel|trout of fish
"""


def test_paragraphs_and_rows_are_wrapped_and_commands_are_not() -> None:
    assert fitted(HELP, 66) == HELP
    assert fitted(HELP, 56).splitlines() == [
        "Usage: shoal swim <where> [options]",
        "",
        "Swim to a place, and come back when the tide turns. The",
        "way is the shortest that the current allows.",
        "",
        "Examples:",
        "  shoal swim reef      # and back again before dusk",
        "  shoal swim reef --with-all-that-the-command-needs-in-one-line",
        "",
        "Options:",
        "  --depth <metres>     the depth, of which less is",
        "                       warmer",
        "  --kind cod|eel|trout of fish",
    ]
    assert fitted(HELP, 34).splitlines()[:18] == [
        "Usage: shoal swim <where>",
        "       [options]",
        "",
        "Swim to a place, and come back",
        "when the tide turns. The way is",
        "the shortest that the current",
        "allows.",
        "",
        "Examples:",
        "  shoal swim reef",
        "      # and back again before dusk",
        "  shoal swim reef --with-all-that-the-command-needs-in-one-line",
        "",
        "Options:",
        "  --depth <metres>",
        "      the depth, of which less is",
        "      warmer",
        "  --kind cod|eel|trout of fish",
    ]


@pytest.mark.parametrize("columns", [1, 5, 9])
def test_a_terminal_of_few_columns_has_all_the_words(columns: int) -> None:
    printed = fitted(HELP, columns)
    assert printed.startswith("Usage:\n")
    assert printed.replace("#", "").split() == HELP.replace("#", "").split()


@pytest.mark.parametrize("verb", ["", *_VERBS])
def test_the_help_of_a_verb_fits_a_terminal_of_80_columns(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    try:
        main([*filter(None, [verb]), "--help"])
    except SystemExit as end:
        assert end.code == 0
    printed = capsys.readouterr().out
    _, _, examples = printed.partition("\nExample")
    long = [line for line in printed.splitlines() if len(line) > 80]
    assert [line for line in long if line not in examples or not line.startswith("  ")] == []
    assert all("  #" not in line for line in long), "a comment is below a command that is too long"
    assert re.findall(r".*[a-z]-$", printed, re.MULTILINE) == [], "a flag is broken at its hyphen"
