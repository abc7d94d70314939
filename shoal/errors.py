"""The errors that clients can get: one class per Triton error code, with its HTTP and gRPC status. Other files derive
further ones.

    ShoalError                  Triton          HTTP  gRPC
    ├── UnknownError           UNKNOWN          400   2 UNKNOWN
    ├── InternalError          INTERNAL         500   13 INTERNAL            a body that cannot be parsed, too
    ├── NotFoundError          NOT_FOUND        404   5 NOT_FOUND
    ├── InvalidArgumentError   INVALID_ARG      400   3 INVALID_ARGUMENT
    │   ├── TooLargeError                       413   8 RESOURCE_EXHAUSTED   more memory than a limit of the server's
    │   └── NoModelError                                                     of a directory in a repository
    ├── UnavailableError       UNAVAILABLE      503   14 UNAVAILABLE
    │   ├── UnauthenticatedError                401  16 UNAUTHENTICATED      no API key, or an unknown one
    │   ├── PermissionDeniedError               403   7 PERMISSION_DENIED    the client may not, others may
    │   ├── ConnectionLostError                                              raised by shoal.Client
    │   └── TimedOutError                                                    raised by shoal.Client
    ├── UnsupportedError       UNSUPPORTED      501   12 UNIMPLEMENTED
    ├── AlreadyExistsError     ALREADY_EXISTS   400   6 ALREADY_EXISTS
    └── CancelledError         CANCELLED        400   1 CANCELLED

An error is raised where the fault is known, and becomes a response in one place of each process
(frontend/road/endpoints.py, workers/worker.py). Used in every process; imports nothing of Shoal. Source of the
statuses: Triton's http_server.cc and grpc/grpc_utils.cc.
"""

from typing import ClassVar


class ShoalError(Exception):
    """An error whose text is a sentence for the client."""

    code: ClassVar[str]
    #: The code in a ring record; 0 there means success.
    wire: ClassVar[int]
    http_status: ClassVar[int]
    #: The number of gRPC's status code.
    grpc_status: ClassVar[int]
    #: The words before a reason in the repository index ("Invalid argument: …").
    words: ClassVar[str]
    #: Seconds after which another attempt may succeed, where that is known.
    retry_after_s: int = 0


class UnknownError(ShoalError):
    """An unexpected failure without a known cause."""

    code, wire, http_status, grpc_status, words = "UNKNOWN", 1, 400, 2, "Unknown"


class InternalError(ShoalError):
    """The server or a model failed, or a body could not be parsed (Triton answers 500 to both)."""

    code, wire, http_status, grpc_status, words = "INTERNAL", 2, 500, 13, "Internal"


class NotFoundError(ShoalError):
    """A model, version or region does not exist."""

    code, wire, http_status, grpc_status, words = "NOT_FOUND", 3, 404, 5, "Not found"


class InvalidArgumentError(ShoalError):
    """The request or the model configuration is wrong."""

    code, wire, http_status, grpc_status, words = "INVALID_ARG", 4, 400, 3, "Invalid argument"


class TooLargeError(InvalidArgumentError):
    """The request takes more memory than a limit of the server's own allows."""

    http_status, grpc_status = 413, 8


class NoModelError(InvalidArgumentError):
    """A directory of a repository cannot be a model; the index has the sentence without further words, as in Triton."""

    words = ""


class UnavailableError(ShoalError):
    """The server or model is not ready, full, late or stopping. Another attempt may succeed later."""

    code, wire, http_status, grpc_status, words = "UNAVAILABLE", 5, 503, 14, "Unavailable"


class UnauthenticatedError(UnavailableError):
    """The request has no API key, or one that is not known. Triton has no code for that, HTTP and gRPC have one."""

    http_status, grpc_status = 401, 16


class PermissionDeniedError(UnavailableError):
    """The client may not do this, though others may. Triton has no code for that, HTTP and gRPC have one."""

    http_status, grpc_status = 403, 7


class ConnectionLostError(UnavailableError):
    """The server has ended, has hung up, or cannot be found; whether a request was executed is unknown."""


class TimedOutError(UnavailableError, TimeoutError):
    """No answer within the client's `timeout`. The request is cancelled; whether it was executed is unknown."""


class UnsupportedError(ShoalError):
    """The server, model or backend does not have the feature."""

    code, wire, http_status, grpc_status, words = "UNSUPPORTED", 6, 501, 12, "Unsupported"


class AlreadyExistsError(ShoalError):
    """The name to be created exists already."""

    code, wire, http_status, grpc_status, words = "ALREADY_EXISTS", 7, 400, 6, "Already exists"


class CancelledError(ShoalError):
    """The client has disconnected or cancelled the request before there was an answer."""

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
    """The error of a record's status word and sentence; an unknown word means INTERNAL."""
    return BY_WIRE.get(wire, InternalError)(sentence)


def index_reason(error: ShoalError) -> str:
    """An error as a reason in the repository index: `Invalid argument: …`."""
    return f"{error.words}: {error}" if error.words else str(error)
