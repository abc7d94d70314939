"""Every error a client can be told about: one class per Triton error code, its HTTP and gRPC status beside it.

    ShoalError                  Triton          HTTP  gRPC
    ├── UnknownError           UNKNOWN          400   2 UNKNOWN
    ├── InternalError          INTERNAL         500   13 INTERNAL            also JSON that cannot be parsed
    ├── NotFoundError          NOT_FOUND        404   5 NOT_FOUND
    ├── InvalidArgumentError   INVALID_ARG      400   3 INVALID_ARGUMENT
    │   └── NoModelError                                                     of the repository alone
    ├── UnavailableError       UNAVAILABLE      503   14 UNAVAILABLE
    │   ├── ConnectionLostError                                              of clients, as is the next
    │   └── TimedOutError
    ├── UnsupportedError       UNSUPPORTED      501   12 UNIMPLEMENTED
    ├── AlreadyExistsError     ALREADY_EXISTS   400   6 ALREADY_EXISTS
    └── CancelledError         CANCELLED        400   1 CANCELLED

Raised where the fault is known, translated once at the rim (frontend/road/app.py, workers/worker.py).
Used in every process; imports nothing of Shoal. Source of the statuses: Triton's http_server.cc and
grpc/grpc_utils.cc.
"""

from typing import ClassVar


class ShoalError(Exception):
    """A fault with a sentence for the client; `str(error)` is that sentence."""

    code: ClassVar[str]
    #: The code as it travels in a ring record; 0 there means success.
    wire: ClassVar[int]
    http_status: ClassVar[int]
    #: The number of gRPC's status code.
    grpc_status: ClassVar[int]
    #: How the repository index introduces a reason ("Invalid argument: …").
    words: ClassVar[str]
    #: In how many seconds it may be worth trying again, where that is known.
    retry_after_s: int = 0


class UnknownError(ShoalError):
    """An unexpected failure without a known cause."""

    code, wire, http_status, grpc_status, words = "UNKNOWN", 1, 400, 2, "Unknown"


class InternalError(ShoalError):
    """The server or a model failed, or a body could not be parsed (Triton answers 500 to both)."""

    code, wire, http_status, grpc_status, words = "INTERNAL", 2, 500, 13, "Internal"


class NotFoundError(ShoalError):
    """No such model, version or region."""

    code, wire, http_status, grpc_status, words = "NOT_FOUND", 3, 404, 5, "Not found"


class InvalidArgumentError(ShoalError):
    """The request or the model configuration is wrong."""

    code, wire, http_status, grpc_status, words = "INVALID_ARG", 4, 400, 3, "Invalid argument"


class NoModelError(InvalidArgumentError):
    """What a repository has under a name cannot be a model; the index says why in these words alone, as in Triton."""

    words = ""


class UnavailableError(ShoalError):
    """Not now: not ready, full, late or stopping. Trying again later may help."""

    code, wire, http_status, grpc_status, words = "UNAVAILABLE", 5, 503, 14, "Unavailable"


class ConnectionLostError(UnavailableError):
    """The server is gone, has hung up, or cannot be found; whether a request was executed is not known."""


class TimedOutError(UnavailableError, TimeoutError):
    """No answer within the client's `timeout`. The request is cancelled; whether it was executed is not known."""


class UnsupportedError(ShoalError):
    """This server, model or backend cannot do that at all."""

    code, wire, http_status, grpc_status, words = "UNSUPPORTED", 6, 501, 12, "Unsupported"


class AlreadyExistsError(ShoalError):
    """The thing to be made is there already."""

    code, wire, http_status, grpc_status, words = "ALREADY_EXISTS", 7, 400, 6, "Already exists"


class CancelledError(ShoalError):
    """The client went away or cancelled before there was an answer."""

    code, wire, http_status, grpc_status, words = "CANCELLED", 8, 400, 1, "Cancelled"


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
    return f"{error.words}: {error}" if error.words else str(error)
