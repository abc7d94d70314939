"""Help texts in lines as wide as the terminal, and the printing of help. Help is written for 120 columns; a narrower
terminal would break its words."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

#: The columns for which help is written.
WRITTEN_COLUMNS = 120
#: The head of a row, which ends with two spaces (of a flag, a verb or a command) or with one (of a long flag with its
#: value). The line of the usage is a row, too.
_HEAD = re.compile(r" +(?:--[a-z, -]+ (?:<[^>]*>|[a-z]+(?:\|[a-z]+)+) |\S(?:.*?\S)?  +)(?=\S)|Usage: ")
#: The least columns of a text beside its flag; the indent of a text that, with fewer, begins on the next line (ours).
_LEAST_COLUMNS, _INDENT = 25, 6


class HelpPrinter(argparse.ArgumentParser):
    """An ArgumentParser that raises OSError where its help cannot be written. argparse's own parser ignores the error;
    until Python 3.11 the flush at the process's end then failed, too, and printed its error."""

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help, to stdout unless a file is given."""
        print(self.format_help(), end="", file=file)


def for_terminal(text: str) -> str:
    """A help text for the terminal's width; unchanged where there is no terminal."""
    return fitted(text, shutil.get_terminal_size((WRITTEN_COLUMNS, 0)).columns)


def fitted(text: str, columns: int) -> str:
    """The text with its paragraphs and rows wrapped anew; only commands may stay longer than `columns`. Pure."""
    if all(len(line) <= columns for line in text.splitlines()):
        return text
    return "".join(f"{line}\n" for part in _parts(text.splitlines()) for line in _wrapped(part, columns))


def _parts(lines: list[str]) -> Iterator[list[str]]:
    """The paragraphs, and the rows with the lines that continue them."""
    part: list[str] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        head = _HEAD.match(part[0]) if part else None
        is_below = indent == head.end() if head else not indent and bool(part and part[0].strip() == part[0] != "")
        if part and not (line and is_below):
            yield part
            part = []
        part.append(line)
    if part:
        yield part


def _wrapped(part: list[str], columns: int) -> list[str]:
    found = _HEAD.match(part[0])
    head = found[0] if found else ""
    if max(map(len, part)) <= columns or (part[0].startswith(" ") and not found):
        return part
    is_beside = columns - len(head) >= _LEAST_COLUMNS
    indent = " " * (len(head) if is_beside else _INDENT)
    texts = [part[0][len(head) :], *map(str.strip, part[1:])]
    mark = "# " if texts[0].startswith("# ") else ""  # each line of a comment begins with the mark
    words = " ".join([text.removeprefix(mark) for text in texts])
    width = max(1, columns - len(indent + mark))
    lines = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    lines = [f"{indent}{mark}{line}" for line in lines]
    return [head + lines[0].removeprefix(indent), *lines[1:]] if is_beside else [head.rstrip(), *lines]
