"""TorchServe's errors over gRPC: a status whose message is the error's sentence and the name of a Java class of
TorchServe's. Pure.

A *job* is a request that has been accepted for a model. The refusal of a request that has not become a job is INTERNAL,
as in TorchServe; a job's error has gRPC's status for the error's HTTP status.
"""

from shoal.errors import InternalError, ShoalError
from shoal.frontend.torchserve.errors import refusal_of
from shoal.shm.shares import NoRoomError

_INTERNAL, _FAILED_PRECONDITION = 13, 9
#: gRPC's status for an HTTP status; a 4xx that is not listed becomes FAILED_PRECONDITION, a 5xx INTERNAL.
_STATUSES = {
    400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 413: 8, 416: 11, 429: 8, 499: 1, 501: 12, 503: 14, 504: 4,
}  # fmt: skip
#: The Java package of each of TorchServe's error classes whose name is a type of error here; classes not listed are in
#: the package of HTTP.
_PACKAGES = dict.fromkeys(
    ("ModelNotFoundException", "ModelVersionNotFoundException", "InvalidModelException", "ModelException",
     "InvalidModelVersionException"),
    "org.pytorch.serve.archive.model",
) | {"DownloadArchiveException": "org.pytorch.serve.archive"}  # fmt: skip
_JOB = "org.pytorch.serve.http.InternalServerException"


class CallError(InternalError):
    """An error with a status of its own; its sentence is the whole message of the status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.grpc_status = status  # type: ignore[misc]  # of this one error


def status_of(http_status: int) -> int:
    """gRPC's status for an HTTP status."""
    return _STATUSES.get(http_status, _FAILED_PRECONDITION if http_status < 500 else _INTERNAL)


def refused(error: ShoalError, model: str, version: str | None) -> ShoalError:
    """The gRPC error for the refusal of a request before it became a job."""
    if isinstance(error, (CallError, NoRoomError)):
        return error
    fault = refusal_of(error, model, version)
    # TorchServe writes the names of these two classes without the Java package.
    short = {
        "BadRequestException": "BadRequestException.()",
        "ServiceUnavailableException": "InternalServerException.()",
    }
    return CallError(_INTERNAL, f"{fault.message}\n{short.get(fault.kind) or class_of(fault.kind)}")


def failed(error: ShoalError, model: str, version: str | None) -> CallError:
    """The gRPC error for the error of a job."""
    fault = refusal_of(error, model, version)
    return CallError(status_of(fault.status), f"{fault.message}\n{_JOB}")


def managed(error: ShoalError) -> CallError:
    """The gRPC error for the error of a call that manages models."""
    fault = refusal_of(error)
    return CallError(status_of(fault.status), f"{fault.message}\n{class_of(fault.kind)}")


def class_of(kind: str) -> str:
    """The full name, with the Java package, of TorchServe's class for a type of error."""
    return f"{_PACKAGES.get(kind, 'org.pytorch.serve.http')}.{kind}"
