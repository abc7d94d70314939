"""Parameters of requests and responses: as in Triton, a model passes a dict and reads a string of JSON."""

import json
from collections.abc import Mapping
from typing import Any

from triton_python_backend_utils.errors import TritonModelException

Parameters = dict[str, "str | int | float | bool"]


#: The range of integers that msgpack can represent.
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def checked(parameters: Mapping[str, Any] | None) -> Parameters:
    """A copy of the parameters. Raises TritonModelException for a key or a value of a type that Triton does not
    take, or that cannot be sent."""
    taken = dict(parameters or {})
    for key, value in taken.items():
        if type(key) is not str:
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if type(value) not in (bool, int, str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if type(value) is int and not _LEAST <= value <= _MOST:
            raise TritonModelException(f"Parameter '{_printable(key)}' is an integer of more than 64 bits")
        for text in (key, value):
            if type(text) is str and _printable(text) != text:
                raise TritonModelException(
                    f"Parameter '{_printable(key)}' is not Unicode: it has half a surrogate pair"
                )
    return taken


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def as_json(parameters: Mapping[str, Any]) -> str:
    """The parameters as JSON text, compact."""
    return json.dumps(parameters, ensure_ascii=False, separators=(",", ":")) if parameters else "{}"
