"""Parsing of the texts in a configuration's `parameters`, for all backends. Pure. Runs in a worker, while it loads a
model."""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.backend import BackendModel

#: A function from model, parameter's name, expected value and actual value to the error for an invalid value.
#: Frameworks whose error texts differ pass their own.
Refusal: TypeAlias = Callable[[BackendModel, str, str, str], InvalidArgumentError]
_Default = TypeVar("_Default")

THREADS = "a number of threads, 0 for the default"
# Python's own conversions accept more texts: 1_000, digits of other scripts, nan. Its `int` takes at most 4300 digits.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,4300}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def invalid(model: BackendModel, key: str, expected: str, value: str) -> InvalidArgumentError:
    """The error for an invalid value, for frameworks without a sentence of their own."""
    return InvalidArgumentError(f"model '{model.name}': parameter '{key}' must be {expected}, got '{value}'")


def whole_number(
    model: BackendModel,
    key: str,
    value: str | None = None,
    expected: str = "a whole number",
    refusal: Refusal = invalid,
) -> int:
    """The text `value`, or by default the parameter `key`'s, as a whole number; 0 if it is missing or empty. Raises the
    error that `refusal` returns if the text has other characters than digits, or too many."""
    value = model.parameter(key) if value is None else value
    if not value:
        return 0
    if not _WHOLE_NUMBER.fullmatch(value):
        raise refusal(model, key, expected, value)
    return int(value)


def number(model: BackendModel, key: str, value: str | None, default: float) -> float:
    """A parameter's text as a float; `default` if it is missing or empty. Raises InvalidArgumentError if the text is no
    number, or too large for one."""
    if not value:
        return default
    if not _NUMBER.fullmatch(value) or math.isinf(float(value)):
        raise invalid(model, key, "a number", value)
    return float(value)


def flag(
    model: BackendModel,
    key: str,
    value: str | None,
    words: Mapping[str, bool],
    expected: str,
    refusal: Refusal = invalid,
    *,
    default: _Default,
) -> bool | _Default:
    """The entry of `words` for the parameter's text; `default` if it is missing or empty. Raises the error that
    `refusal` returns for a text that is not in `words`."""
    if not value:
        return default
    if value not in words:
        raise refusal(model, key, expected, value)
    return words[value]
