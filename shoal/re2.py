"""Regular expressions in RE2's syntax, as Triton's users write them, for Python's `re`: flags are translated. Pure.

RE2 sets flags at any place, up to the end of the group: `(?-i)My_.*|x` matches `My_a` and `x`, not `my_a`. Python
allows them only at the very beginning and cannot unset them there, but has groups with flags: `(?-i:My_.*)|(?-i:x)`.
"""

import re

#: An escaped character, a class of characters, a flag setting, or any other character.
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|(?P<flags>\(\?(?:[ims]+(?:-[ims]+)?|-[ims]+)\))|.", re.DOTALL
)


def to_python(pattern: str) -> str:
    """The pattern with its flags in Python's syntax; a pattern without flags is unchanged."""
    parts: list[str] = []
    scopes: list[list[str]] = [[]]  # by open group, the outermost first: the flags set in it, as `(?i:`
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["flags"]:
            text = f"{text[:-1]}:"
            scopes[-1].append(text)
        elif text == "(":
            scopes.append([])
        elif text == "|":
            text = ")" * len(scopes[-1]) + "|" + "".join(scopes[-1])
        elif text == ")" and len(scopes) > 1:
            text += ")" * len(scopes.pop())
        parts.append(text)
    return "".join(parts) + ")" * len(scopes[0])
