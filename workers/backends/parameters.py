"""Texts of a configuration's `parameters` as values, alike for all backends. Pure. Runs in a worker, while it loads."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.backend import BackendModel

#: The error for a model's parameter that must be something and has another value; a framework may have a sentence.
Refusal: TypeAlias = Callable[[BackendModel, str, str, str], InvalidArgumentError]

THREADS = "a number of threads, 0 for the default"
# Python takes more for numbers: 1_000, digits of other scripts, nan.
_WHOLE_NUMBER = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def invalid(model: BackendModel, key: str, expected: str, value: str) -> InvalidArgumentError:
    """The sentence of the frameworks that have none of their own."""
    return InvalidArgumentError(f"model '{model.name}': parameter '{key}' must be {expected}, got '{value}'")


def whole_number(
    model: BackendModel, key: str, value: str | None, expected: str = "a whole number", refusal: Refusal = invalid
) -> int:
    """0 where nothing is said. Raises what `refusal` returns for anything but digits."""
    if not value:
        return 0
    if not _WHOLE_NUMBER.fullmatch(value):
        raise refusal(model, key, expected, value)
    return int(value)


def number(model: BackendModel, key: str, value: str | None, default: float) -> float:
    """A number in digits. Raises InvalidArgumentError for anything else."""
    if not value:
        return default
    if not _NUMBER.fullmatch(value):
        raise invalid(model, key, "a number", value)
    return float(value)


def flag(
    model: BackendModel,
    key: str,
    value: str | None,
    words: Mapping[str, bool],
    expected: str,
    refusal: Refusal = invalid,
) -> bool | None:
    """What the word `value` means; None where nothing is said. Raises what `refusal` returns for other words."""
    if not value:
        return None
    if value not in words:
        raise refusal(model, key, expected, value)
    return words[value]
