"""The errors of a Python model: TritonError, which a response carries, and TritonModelException, which is raised."""

from typing import Final

from shoal import errors
from triton_python_backend_utils.arguments import text
from triton_python_backend_utils.enumeration import TritonEnum


class ErrorCode(TritonEnum):
    """The codes of a TritonError."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = "__ErrorCode"  # Triton's name of the class, which repr of a code shows


class TritonError:
    """The error of one request. Its code determines the status that the client gets. Raises TypeError for an unknown
    code, or a message that is no text."""

    UNKNOWN: Final = ErrorCode.UNKNOWN
    INTERNAL: Final = ErrorCode.INTERNAL
    NOT_FOUND: Final = ErrorCode.NOT_FOUND
    INVALID_ARG: Final = ErrorCode.INVALID_ARG
    UNAVAILABLE: Final = ErrorCode.UNAVAILABLE
    UNSUPPORTED: Final = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: Final = ErrorCode.ALREADY_EXISTS
    CANCELLED: Final = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str | bytes, code: int = INTERNAL) -> None:
        try:
            self._code = ErrorCode(code)
        except ValueError:
            raise TypeError(f"Unsupported error code {code!r}: use one of TritonError's.") from None
        self._message = text("the message of a TritonError", message)

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        """The error's code, one of this class's constants."""
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code.name})"


class TritonModelException(Exception):
    """The exception that these utilities raise, and that a model may raise."""

    def message(self) -> str:
        return str(self)


#: Triton's codes → the server's error classes, whose numbers in records are these codes plus one, since 0 means success
#: in a record.
_KINDS = {wire - 1: kind for wire, kind in errors.BY_WIRE.items()}
_CODES = {kind: ErrorCode(code) for code, kind in _KINDS.items()}


def as_shoal_error(error: TritonError) -> errors.ShoalError:
    """The server's error for a TritonError."""
    return _KINDS[error.code()](error.message())


def as_triton_error(error: errors.ShoalError) -> TritonError:
    """The TritonError for an error of the server."""
    return TritonError(str(error), _CODES.get(type(error), TritonError.INTERNAL))
