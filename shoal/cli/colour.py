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
    """The text with each regular expression's matches in its colour, where `stream`, or else stdout, is a terminal.

    Of an expression with a group, the first group alone is coloured.
    """
    if not is_wanted(sys.stdout if stream is None else stream, os.environ):
        return text
    for pattern, colour in colours.items():
        text = re.sub(pattern, partial(_painted, colour), text, flags=re.MULTILINE)
    return text


def printable(text: str) -> str:
    """A text of a client or a model as one line, without control characters, which a terminal would obey."""
    return text if text.isprintable() else repr(text)[1:-1]


def printable_lines(text: str) -> str:
    """A text of a server without the control characters that a terminal would obey; line ends and tabs stay."""
    return "".join([each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text])


def is_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether colours are to be printed to a stream."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _painted(colour: str, found: "re.Match[str]") -> str:
    (start, end), at = found.span(found.re.groups and 1), found.start()
    whole = found[0]
    return f"{whole[: start - at]}\x1b[{colour}m{whole[start - at : end - at]}\x1b[0m{whole[end - at :]}"
