"""Colours of words that are printed to a terminal: none into a pipe or a file, none with NO_COLOR or TERM=dumb."""

import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import TextIO

#: SGR parameters of terminals: green, yellow, red.
GOOD, NOTE, BAD = "32", "33", "31"


def coloured(text: str, colours: Mapping[str, str], stream: TextIO | None = None) -> str:
    """The text with each pattern's matches (re, by line) in its colour, where `stream`, or else stdout, is a terminal.

    The pattern's first group is coloured alone, where it has one.
    """
    if not is_wanted(sys.stdout if stream is None else stream, os.environ):
        return text
    for pattern, colour in colours.items():
        text = re.sub(pattern, partial(_painted, colour), text, flags=re.MULTILINE)
    return text


def printable(text: str) -> str:
    """A text of a client or a model on one line, which a terminal prints and does not obey."""
    return text if text.isprintable() else repr(text)[1:-1]


def printable_lines(text: str) -> str:
    """A text of a server on its lines, with tabs; a terminal prints it and does not obey it."""
    return "".join([each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text])


def is_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether colours may be printed to a stream."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _painted(colour: str, found: "re.Match[str]") -> str:
    (start, end), at = found.span(found.re.groups and 1), found.start()
    whole = found[0]
    return f"{whole[: start - at]}\x1b[{colour}m{whole[start - at : end - at]}\x1b[0m{whole[end - at :]}"
