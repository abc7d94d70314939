"""Every error a client can be told about: one class per Triton error code, its HTTP status beside it.

    ShoalError
    ├── UnknownError           UNKNOWN          400
    ├── InternalError          INTERNAL         500   also every JSON parse or type error in a body
    ├── NotFoundError          NOT_FOUND        404
    ├── InvalidArgumentError   INVALID_ARG      400
    ├── UnavailableError       UNAVAILABLE      503
    ├── UnsupportedError       UNSUPPORTED      501
    ├── AlreadyExistsError     ALREADY_EXISTS   400
    └── CancelledError         CANCELLED        400

Raised where the fault is known, translated once at the rim (frontend/app.py, workers/worker.py).
Used in every process; imports nothing of Shoal. Source of the statuses: Triton's http_server.cc.
"""

from typing import ClassVar


class ShoalError(Exception):
    """A fault with a sentence for the client; `str(error)` is that sentence."""

    code: ClassVar[str]
    #: The code as it travels in a ring record; 0 there means success.
    wire: ClassVar[int]
    http_status: ClassVar[int]
    #: How the repository index introduces a reason ("Invalid argument: …").
    words: ClassVar[str]


class UnknownError(ShoalError):
    """Something failed and nobody knows more."""

    code, wire, http_status, words = "UNKNOWN", 1, 400, "Unknown"


class InternalError(ShoalError):
    """The server or a model failed, or a body could not be parsed (Triton answers 500 to both)."""

    code, wire, http_status, words = "INTERNAL", 2, 500, "Internal"


class NotFoundError(ShoalError):
    """No such model, version or region."""

    code, wire, http_status, words = "NOT_FOUND", 3, 404, "Not found"


class InvalidArgumentError(ShoalError):
    """The request or the model configuration is wrong."""

    code, wire, http_status, words = "INVALID_ARG", 4, 400, "Invalid argument"


class UnavailableError(ShoalError):
    """Not now: not ready, full, late or stopping. Trying again later may help."""

    code, wire, http_status, words = "UNAVAILABLE", 5, 503, "Unavailable"


class UnsupportedError(ShoalError):
    """This server, model or backend cannot do that at all."""

    code, wire, http_status, words = "UNSUPPORTED", 6, 501, "Unsupported"


class AlreadyExistsError(ShoalError):
    """The thing to be made is there already."""

    code, wire, http_status, words = "ALREADY_EXISTS", 7, 400, "Already exists"


class CancelledError(ShoalError):
    """The client went away or cancelled before there was an answer."""

    code, wire, http_status, words = "CANCELLED", 8, 400, "Cancelled"


BY_WIRE: dict[int, type[ShoalError]] = {
    error.wire: error
    for error in (
        UnknownError,
        InternalError,
        NotFoundError,
        InvalidArgumentError,
        UnavailableError,
        UnsupportedError,
        AlreadyExistsError,
        CancelledError,
    )
}


def from_wire(wire: int, sentence: str) -> ShoalError:
    """The error that a record's status word and its sentence stand for; an unknown word is INTERNAL."""
    return BY_WIRE.get(wire, InternalError)(sentence)


def index_reason(error: ShoalError) -> str:
    """The reason as the repository index prints it: `Invalid argument: …`."""
    return f"{error.words}: {error}"
