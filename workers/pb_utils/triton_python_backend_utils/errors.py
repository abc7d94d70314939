"""The errors of a Python model: TritonError, which a response carries, and TritonModelException, which is raised."""

from typing import Final

from shoal import errors
from triton_python_backend_utils.arguments import text


class TritonError:
    """Why one request failed. Its code decides the status that the client gets."""

    UNKNOWN: Final = 0
    INTERNAL: Final = 1
    NOT_FOUND: Final = 2
    INVALID_ARG: Final = 3
    UNAVAILABLE: Final = 4
    UNSUPPORTED: Final = 5
    ALREADY_EXISTS: Final = 6
    CANCELLED: Final = 7

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: int = INTERNAL) -> None:
        if code not in _KINDS:
            raise TypeError(f"Unsupported error code {code!r}: use one of TritonError's.")
        self._message = text("the message of a TritonError", message)
        self._code = code

    def message(self) -> str:
        """The sentence."""
        return self._message

    def code(self) -> int:
        """One of this class's codes."""
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code})"


class TritonModelException(Exception):
    """What these utilities raise, and what a model may."""

    def message(self) -> str:
        """The sentence."""
        return str(self)


#: Triton's codes → what the server knows them as, in records by the same numbers plus one: 0 is success there.
_KINDS = {wire - 1: kind for wire, kind in errors.BY_WIRE.items()}
_CODES = {kind: code for code, kind in _KINDS.items()}


def as_shoal_error(error: TritonError) -> errors.ShoalError:
    """The error as the server tells clients of it."""
    return _KINDS[error.code()](error.message())


def as_triton_error(error: errors.ShoalError) -> TritonError:
    """The server's error as a model is told of it."""
    return TritonError(str(error), _CODES.get(type(error), TritonError.INTERNAL))
