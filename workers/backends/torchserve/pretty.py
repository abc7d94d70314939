"""JSON as `json.dumps(value, indent=2)` writes it, in half the time: to indent, `json.dumps` uses generators in Python
in place of its C code. Pure. Runs in a worker.
"""

import json
from json.encoder import encode_basestring_ascii as quoted
from math import isfinite
from typing import Any

_CONSTANTS = {True: "true", False: "false", None: "null"}


class _UnusualError(Exception):
    """A value has to be written by `json.dumps`: it has a subclass of a JSON type, a key that is no text, or a number
    that is not finite."""


def dumps(value: object) -> str:
    """The text of a value. Raises TypeError, ValueError and RecursionError, as `json.dumps` does."""
    try:
        return _written(value, "\n")
    except (_UnusualError, RecursionError):
        return json.dumps(value, indent=2)


def _written(value: Any, line: str) -> str:
    """The text of a value; `line` is a newline with the indentation of the value's own line."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is float:
        if not isfinite(value):
            raise _UnusualError
        return repr(value)
    if kind is int:
        return repr(value)
    if kind is list or kind is tuple:
        if not value:
            return "[]"
        inner = f"{line}  "
        return f"[{inner}{f',{inner}'.join([_written(each, inner) for each in value])}{line}]"
    if kind is dict:
        if not value:
            return "{}"
        inner = f"{line}  "
        members = [f"{_key(key)}: {_written(each, inner)}" for key, each in value.items()]
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if kind is bool or value is None:
        return _CONSTANTS[value]
    raise _UnusualError


def _key(key: object) -> str:
    if type(key) is not str:
        raise _UnusualError
    return quoted(key)
