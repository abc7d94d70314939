"""Reads JSON from clients: checks limits, parses exactly what Triton's parser accepts, and gives typed access to the
result.

All handlers parse JSON through this file. Errors in a body's syntax or types are INTERNAL (500), as in Triton, and have
Triton's texts: `read_json` has RapidJSON's, the `as_` functions have those of Triton's wrapper around RapidJSON.
Front-end processes.
"""

import codecs
import io
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import rapidjson

from shoal.errors import InternalError, InvalidArgumentError

MAX_INPUT_SIZE = 64 << 20  # Triton's default of --http-max-input-size
MAX_DEPTH = 100  # Triton's

MAX_INT64 = 2**63 - 1
MAX_UINT64 = 2**64 - 1

#: RapidJSON holds the GIL while it parses a text: for 45 MB one second where numbers are long, five where lists are
#: short, during which no other thread of the road answers a request or the supervisor. A text of more than
#: _ONE_PIECE_BYTES is parsed in pieces, each of which takes one to three milliseconds; in all that takes up to two
#: thirds longer (measured).
_ONE_PIECE_BYTES, _PIECE_BYTES = 1 << 20, 32 << 10

#: As many zeros as the shortest integer that is too large for a double has digits (309); and a table that turns all
#: digits into zeros, so that a search for so many zeros finds such integers.
_LONG_NUMBER, _DIGITS_ARE_ZEROS = b"0" * 309, bytes.maketrans(b"123456789", b"0" * 9)
_DEPTH_SENTENCE = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = bytes.maketrans(b"[{]}", bytes((1, 1, 255, 255)))  # as int8: +1 for an opening bracket, -1 for a closing one


def read_json(buffer: bytes | memoryview, max_input_size: int = MAX_INPUT_SIZE) -> Any:
    """The value in `buffer`; where an object has a key twice, the last counts.

    NaN, Inf and Infinity are accepted, also with a minus. An integer that does not fit into 64 bits becomes a float,
    or, in a text that has a NaN too, stays an int: `as_uint` refuses both. A byte order mark before the value is
    skipped. Raises InvalidArgumentError where a limit is exceeded, InternalError for wrong syntax.
    """
    if len(buffer) > max_input_size:
        raise InvalidArgumentError(
            f"request JSON size of {len(buffer)} bytes exceeds the maximum allowed input size of {max_input_size} "
            "bytes. Use --http-max-input-size to increase the limit."
        )
    text = bytes(buffer)
    # The two counts run in C; only a body with many lists (a nested tensor) needs its depth worked out.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise InvalidArgumentError(_DEPTH_SENTENCE)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _read_as_rapidjson(text)


def _depth(text: bytes) -> int:
    """The deepest nesting in the text, up to its first syntax error if it has one: no parser descends further than that
    error."""
    if b"\\" in text:
        # An escaped quote ends no string; a backslash that is itself escaped escapes nothing.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(text.translate(None, _NOT_STRUCTURE).split(b'"')[::2])
    steps = np.frombuffer(outside_strings.translate(_STEPS), dtype=np.int8)
    return int(steps.cumsum(dtype=np.int64).max(initial=0))


class _Pieces(io.BytesIO):
    """A text as a stream that RapidJSON reads in pieces: `read` is a Python function, at which other threads get the
    GIL."""

    def read(self, nbytes: int | None = -1, /) -> bytes:
        return super().read(nbytes)


def _parse(text: bytes, decoded: str, number_mode: int) -> Any:
    if len(text) > _ONE_PIECE_BYTES:
        return rapidjson.load(_Pieces(text), chunk_size=_PIECE_BYTES, number_mode=number_mode)
    return rapidjson.loads(decoded, number_mode=number_mode)


class _RepeatedKeyError(Exception):
    """An object in a text has a key twice; the key is the exception's argument."""


class _EachKeyOnce(rapidjson.Decoder):
    """A parser that only checks a text: it returns no value, and raises _RepeatedKeyError where an object has a key
    twice."""

    def start_object(self) -> list[tuple[str, Any]]:
        return []  # the parser appends the object's members to this list

    def end_object(self, members: list[tuple[str, Any]]) -> None:
        """Check an object's keys. Raises _RepeatedKeyError."""
        seen: set[str] = set()
        for key, _ in members:
            if key in seen:
                raise _RepeatedKeyError(key)
            seen.add(key)


def repeated_key(buffer: bytes | memoryview, num_members: int) -> str | None:
    """A key that an object in `buffer` has twice, or None. The result of `read_json` does not show repeated keys.

    `num_members` is the number of members of all objects together in the result of `read_json`. A text with as many
    colons as members has no key twice, and is not parsed again.
    """
    text = bytes(buffer).removeprefix(codecs.BOM_UTF8)
    if text.count(b":") == num_members:
        return None
    decoder = _EachKeyOnce(number_mode=rapidjson.NM_NAN | rapidjson.NM_NATIVE)
    try:
        if len(text) > _ONE_PIECE_BYTES:
            decoder(_Pieces(text), chunk_size=_PIECE_BYTES)
        else:
            decoder(text.decode())
    except _RepeatedKeyError as error:
        return str(error)
    except rapidjson.JSONDecodeError:
        pass  # a number that only orjson reads; objects that end before it have been checked
    return None


def _read_as_rapidjson(text: bytes) -> Any:
    """The value of a text, read by Triton's own parser: that parser skips a byte order mark, reads NaN and Infinity,
    and words its errors as Triton's clients know them."""
    num_skipped = 0
    if text.startswith(codecs.BOM_UTF8):  # Triton skips it; python-rapidjson does not
        text, num_skipped = text.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text)
    try:
        decoded = text.decode()
        if _LONG_NUMBER in text.translate(_DIGITS_ARE_ZEROS):
            # Parsed twice. With native numbers RapidJSON refuses an integer beyond every double, as Triton does; as
            # Python's int it would fail later, where it becomes a float. The result has Python's floats: of RapidJSON's
            # own floats one in eight is not the nearest.
            _parse(text, decoded, rapidjson.NM_NAN | rapidjson.NM_NATIVE)
        return _parse(text, decoded, rapidjson.NM_NAN)
    except UnicodeDecodeError as error:
        message, offset = "Invalid encoding in string.", error.start
    except rapidjson.JSONDecodeError as error:
        # python-rapidjson says `Parse error at offset OFFSET: MESSAGE`.
        number, _, message = str(error).removeprefix("Parse error at offset ").partition(": ")
        offset = int(number)
    raise InternalError(f"failed to parse the request JSON buffer: {message} at {num_skipped + offset}")


# ---------------------------------------------------------------------------------------------------------------
# Typed access. The errors are INTERNAL, with the texts of Triton's wrapper behind the name of the field.


def find(value: Any, member: str) -> Any:
    """The member of `value`; None if `value` is no object, as in Triton, or has no such member. A JSON null counts
    as absent."""
    return value.get(member) if type(value) is dict else None


def has(value: Any, member: str) -> bool:
    """Whether `value` is an object with that member, which may be null."""
    return type(value) is dict and member in value


def member(value: Any, name: str) -> Any:
    """A required member. Raises InternalError if it is missing."""
    if type(value) is not dict or name not in value:
        raise InternalError(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    return value[name]


def as_string(value: Any, field: str) -> str:
    """`value`, a string. Raises InternalError for any other type."""
    if type(value) is not str:
        raise _mistyped(field, "string")
    return value


def as_bool(value: Any, field: str) -> bool:
    """`value`, true or false. Raises InternalError for any other type."""
    if type(value) is not bool:
        raise _mistyped(field, "boolean")
    return value


def as_list(value: Any, field: str) -> list[Any]:
    """`value`, an array. Raises InternalError for any other type."""
    if type(value) is not list:
        raise _mistyped(field, "array")
    return value


def as_uint(value: Any, field: str) -> int:
    """`value`, an unsigned integer of 64 bits; 1.0 is not accepted. Raises InternalError for any other value."""
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise _mistyped(field, "unsigned-integer")
    return value


def _mistyped(field: str, kind: str) -> InternalError:
    return InternalError(f"Unable to parse '{field}': {wrong_type(kind)}")


def wrong_type(kind: str) -> str:
    """The error text of Triton's wrapper for a value that is not of type `kind`."""
    return f"attempt to access JSON non-{kind} as {'double' if kind == 'number' else kind}"
