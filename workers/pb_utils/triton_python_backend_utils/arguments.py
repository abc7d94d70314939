"""Checks of arguments from models: text and numbers, as Triton's C++ binding takes them; a TypeError for anything
else."""

import operator
from typing import Any

UINT32_MAX, UINT64_MAX = (1 << 32) - 1, (1 << 64) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def text(what: str, value: Any) -> str:
    """A str, or bytes of UTF-8, as a str. Raises TypeError for any other value; `what` names it in the error."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{what} must be str or bytes, found type {type(value)}")


def integer(what: str, value: Any, least: int, most: int) -> int:
    """An int, or a numpy integer, as an int. Raises TypeError for any other value, and for one that is out
    of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, found type {type(value)}") from None
    if not least <= number <= most:
        raise TypeError(f"{what} must be an integer from {least} to {most}, found {number}")
    return number


def figure(what: str, value: Any) -> float:
    """A number as a float. Raises TypeError for any other value, even a text of digits, and for a number that is too
    large."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{what} must be a number, found type {type(value)}")
    try:
        return float(value)
    except OverflowError:
        raise TypeError(f"{what} must be a number of 64 bits, found an integer that is too large") from None
