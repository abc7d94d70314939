"""The file format of config.properties: Java's properties, in Latin-1, with `$$NAME$$` for environment variables.

# comment   ! comment   key=value   key: value   key value   \\ at a line's end continues it; \\: \\= \\n \\uXXXX
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.model_config import files

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE = re.compile(r"\$\$(\w+)\$\$", re.ASCII)
_MAX_FILE_BYTES = 1 << 20


class PropertiesError(ValueError):
    """A properties file, or a value in it, cannot be used; the message is a sentence for the user."""


def read_properties(file: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The values in a file, their variables replaced. Raises PropertiesError for a file that cannot be read or is too
    large, and as `parse_properties` and `with_variables` do."""
    try:
        raw = files.read(file, _MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PropertiesError(f"'{file}' cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise PropertiesError(f"'{file}' is larger than {_MAX_FILE_BYTES} bytes")
    return with_variables(parse_properties(raw), environ)


def parse_properties(raw: bytes) -> dict[str, str]:
    """The values by key; of equal keys the last one counts. Raises PropertiesError for a malformed \\uXXXX."""
    return dict(_pair(line) for line in _logical_lines(raw.decode("latin-1")))


def with_variables(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values with every `$$NAME$$` replaced. Raises PropertiesError, in TorchServe's words, for a variable
    that is not set."""

    def of(found: "re.Match[str]") -> str:
        if found[1] not in environ:
            raise PropertiesError(f"Invalid Environment Variable {found[1]}")
        return environ[found[1]]

    return {key: _VARIABLE.sub(of, value) for key, value in values.items()}


def format_properties(values: Mapping[str, str]) -> str:
    """The text of a file with these values, which `parse_properties` reads; characters beyond Latin-1 as \\uXXXX."""
    return "".join(f"{_escaped(key, blanks=True)}={_escaped(value)}\n" for key, value in values.items())


def _escaped(text: str, *, blanks: bool = False) -> str:
    escaped = text.replace("\\", "\\\\")
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    if blanks:
        escaped = re.sub(r"([ =:#!])", r"\\\1", escaped)
    elif escaped[:1] == " ":
        escaped = f"\\{escaped}"
    return "".join(_in_latin(character) for character in escaped)


def _in_latin(character: str) -> str:
    if ord(character) < 256:
        return character
    pairs = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))


def _logical_lines(text: str) -> Iterator[str]:
    """The lines that are no comments, without leading blanks; a line that is continued is joined with the next one."""
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
    joined = "".join([*parts, text[at:]])
    # A character beyond the first 65536 of Unicode is two \\uXXXX, as in Java.
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
