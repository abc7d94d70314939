"""What may stand behind a flag: text to value, with a sentence for what does not fit. Runs in the supervisor, once.

Booleans and integers are read as Triton reads them. A parser raises ValueError; the command line names the flag.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_TRUE = frozenset({"true", "1", "on"})
_FALSE = frozenset({"false", "0", "off"})
_CLOUD = ("gs://", "s3://", "as://")


class ValueKind(NamedTuple):
    """One kind of value: how help calls it, how it is read, what a flag without a value means."""

    metavar: str  # "" where the flag takes no value
    parse: Callable[[str], Any]
    bare: str | None = None  # stands in for a missing value; None: a value is required


def _boolean(text: str) -> bool:
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"invalid value for bool option: {text}")  # Triton's sentence


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"expected an integer, got '{text}'")
    return int(text)


def _verbosity(text: str) -> int:
    word = text.lower()
    if word in _TRUE | _FALSE:
        return int(word in _TRUE)
    level = _integer(text)
    if level < 0:
        raise ValueError(f"expected 0 for no verbose messages, a level from 1 on, or a boolean, got {text}")
    return level


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a value, got nothing")
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got '{text}'") from None


def _repository(text: str) -> Path:
    if text.startswith(_CLOUD):
        raise ValueError(
            f"model repositories in cloud storage are not there yet; copy '{text}' to a local directory and give that"
        )
    return Path(_text(text))


def _backend_setting(text: str) -> tuple[str, str, str]:
    """`onnxruntime,intra_op_thread_count=2` → ("onnxruntime", "intra_op_thread_count", "2"); no name: all."""
    head, equals, value = text.partition("=")
    backend, comma, setting = head.rpartition(",")
    if not (equals and setting and value) or (comma and not backend):
        raise ValueError(
            f"--backend-config option format is '<backend name>,<setting>=<value>' or '<setting>=<value>'. Got {text}"
        )
    return backend, setting, value


def integer(low: int, high: int | None = None) -> ValueKind:
    """A kind for integers within bounds, both included."""
    bounds = f"of {low} or more" if high is None else f"from {low} to {high}"

    def parse(text: str) -> int:
        value = _integer(text)
        if value < low or (high is not None and value > high):
            raise ValueError(f"expected an integer {bounds}, got {text}")
        return value

    return ValueKind("<integer>", parse)


def choice(*words: str) -> ValueKind:
    """A kind for one of some words, in any case, as Triton takes them."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"expected one of {', '.join(words)}, got '{text}'")
        return known[text.lower()]

    return ValueKind("{" + ",".join(words) + "}", parse)


BOOLEAN = ValueKind("<boolean>", _boolean, bare="true")
SWITCH = ValueKind("", _boolean, bare="true")
INTEGER = ValueKind("<integer>", _integer)
NUMBER = ValueKind("<number>", _number)
TEXT = ValueKind("<string>", _text)
ANY_TEXT = ValueKind("<string>", str)  # may be empty: often Triton's default
VERBOSITY = ValueKind("<integer>", _verbosity, bare="1")
REPOSITORY = ValueKind("<directory>", _repository)
BACKEND_SETTING = ValueKind("[<backend>,]<key>=<value>", _backend_setting)
PORT = integer(0, 65535)
