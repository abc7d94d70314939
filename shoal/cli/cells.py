"""How many cells of a terminal a text takes: East Asian wide characters take two, combining ones none. Pure."""

import unicodedata
from collections.abc import Iterable


def width(text: str) -> int:
    """The number of cells that a printable text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def padded(text: str, cells: int) -> str:
    """The text with spaces behind it, so that it takes at least so many cells."""
    return text + " " * (cells - width(text))


def clipped(text: str, cells: int) -> str:
    """The beginning of a text that takes at most so many cells."""
    return text[:cells] if text.isascii() else "".join(_first(text, cells))


def clipped_left(text: str, cells: int) -> str:
    """The end of a text that takes at most so many cells."""
    return "".join(reversed(list(_first(reversed(text), cells))))


def _first(characters: Iterable[str], cells: int) -> Iterable[str]:
    for character in characters:
        cells -= _width(character)
        if cells < 0:
            return
        yield character


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
