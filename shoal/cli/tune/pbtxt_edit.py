"""Fields of a config.pbtxt, replaced in its text: comments, order and all other fields stay. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_TOKEN = re.compile(r"""\s+|\#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}\[\]<>:;,]|[^\s\#"'{}\[\]<>:;,]+""")
_OPENING, _CLOSING = "{[<", "}]>"


class FieldPlace(NamedTuple):
    """Where a field stands: from its name to the end of its value, and the inside of a value in brackets."""

    name: str
    start: int
    end: int
    inside: tuple[int, int] | None


def fields(text: str) -> list[FieldPlace]:
    """The fields of a message's text, not those inside of them. Raises ValueError for brackets that do not match."""
    found: list[FieldPlace] = []
    name, start, depth, opened = "", 0, 0, 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word[0].isspace() or word[0] == "#":
            continue
        if word in _OPENING:
            if depth == 0:
                opened = token.end()
            depth += 1
        elif word in _CLOSING:
            depth -= 1
            if depth < 0:
                raise ValueError("brackets do not match")
            if depth == 0:
                found.append(FieldPlace(name, start, token.end(), (opened, token.start())))
                name = ""
        elif depth == 0 and word not in ":;,":
            if not name:
                name, start = word, token.start()
            else:
                found.append(FieldPlace(name, start, token.end(), None))
                name = ""
    if depth or name:
        raise ValueError("the text ends within a field")
    return found


def replaced(text: str, values: Mapping[str, str | None]) -> str:
    """The text with some fields replaced. `values`: a field's name → its new text, name included, or None to remove it.

    The new text takes the place of the first field of that name, and others of the name are removed. A field that the
    text does not have comes at the end.
    """
    places = fields(text)
    left = dict(values)
    pieces, at = [], 0
    for place in places:
        if place.name not in values:
            continue
        value = left.pop(place.name, None)
        pieces.append(text[at : place.start])
        at = place.end
        if value is not None:
            pieces.append(value)
        elif text[at : at + 1] == "\n" and (not pieces[-1] or pieces[-1].endswith("\n")):
            at += 1  # no empty line is left behind
    pieces.append(text[at:])
    whole = "".join(pieces)
    for value in left.values():
        if value is not None:
            whole += "\n" * bool(whole and not whole.endswith("\n")) + value + "\n"
    return whole


def inside(text: str, name: str) -> str:
    """The inside of the first field of a name; "" where there is none."""
    for place in fields(text):
        if place.name == name and place.inside is not None:
            return text[place.inside[0] : place.inside[1]]
    return ""


def with_parameter(text: str, key: str, value: str) -> str:
    """The text with a parameter of the model (`parameters { key: … value { string_value: … } }`) set to a value.

    A parameter that the text has keeps its place; a new one comes at the end.
    """
    pattern = re.compile(
        rf"""(key\s*:\s*(["']){re.escape(key)}\2[\s,;]*value\s*:?\s*\{{\s*string_value\s*:\s*)(["'])[^"'\n]*\3"""
    )
    for place in fields(text):
        if place.name != "parameters" or place.inside is None:
            continue
        start, end = place.inside
        changed, count = pattern.subn(rf'\g<1>"{value}"', text[start:end])
        if count:
            return text[:start] + changed + text[end:]
    block = f'parameters {{\n  key: "{key}"\n  value {{ string_value: "{value}" }}\n}}\n'
    return text + "\n" * bool(text and not text.endswith("\n")) + block
