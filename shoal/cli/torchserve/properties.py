"""The file format of config.properties: Java's properties, in Latin-1, with `$$NAME$$` for environment variables. Pure.

# comment   ! comment   key=value   key: value   key value   \\ at a line's end continues it; \\: \\= \\n \\uXXXX
"""

import re
from collections.abc import Iterator, Mapping

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE = re.compile(r"\$\$(\w+)\$\$", re.ASCII)


class PropertiesError(ValueError):
    """A properties file, or a value in it, cannot be used; the message is a sentence for the user."""


def parse_properties(raw: bytes) -> dict[str, str]:
    """The values by key; of equal keys the last one counts. Raises PropertiesError for a malformed \\uXXXX."""
    return dict(_pair(line) for line in _logical_lines(raw.decode("latin-1")))


def with_variables(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values with every `$$NAME$$` replaced. Raises PropertiesError, in TorchServe's words, for an unset one."""

    def of(found: "re.Match[str]") -> str:
        if found[1] not in environ:
            raise PropertiesError(f"Invalid Environment Variable {found[1]}")
        return environ[found[1]]

    return {key: _VARIABLE.sub(of, value) for key, value in values.items()}


def _logical_lines(text: str) -> Iterator[str]:
    """The lines that are no comments, without blanks before them, and those that are continued as one."""
    lines = iter(re.split("\r\n|\n|\r", text))
    for line in lines:
        start = line.lstrip(_BLANK)
        if not start or start[0] in "#!":
            continue
        while _is_continued(start):
            start = start[:-1] + next(lines, "").lstrip(_BLANK)
        yield start


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _pair(line: str) -> tuple[str, str]:
    """Key and value of a logical line: the key ends at the first blank, `=` or `:` that is not escaped."""
    end = 0
    while end < len(line) and line[end] not in f"{_BLANK}=:":
        end += 2 if line[end] == "\\" else 1
    key, rest = line[:end], line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return _unescaped(key), _unescaped(rest)


def _unescaped(text: str) -> str:
    parts, at = [], 0
    while (found := text.find("\\", at)) >= 0:
        parts.append(text[at:found])
        letter = text[found + 1 : found + 2]
        at = found + 2
        if letter == "u":
            digits = text[at : at + 4]
            if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
                raise PropertiesError("Malformed \\uxxxx encoding.")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(letter, letter))
    return "".join([*parts, text[at:]])
