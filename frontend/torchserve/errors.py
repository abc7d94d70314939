"""TorchServe's errors: the status, the type and the message that its clients know, for each error of Shoal's.

Workers of the backend `torchserve`, and the supervisor where an archive is at fault, choose status, type and message
themselves, and send them in the sentence of an ordinary error:

    ts:503:InternalServerException:Prediction failed

Pure. Front-end processes.
"""

import orjson

from shoal.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    ShoalError,
    UnauthenticatedError,
    UnavailableError,
)
from shoal.frontend.access.key_limits import KeyLimitError
from shoal.frontend.response import CHALLENGE, JSON_CONTENT, Headers, Response, encodable
from shoal.reasons import ModelGoneError, PoisonRefusedError, QueueFullError, WorkerDiedError
from shoal.torchserve_errors import TorchServeFault, torchserve_fault

_BAD_REQUEST, _INTERNAL, _UNAVAILABLE = (
    "BadRequestException", "InternalServerException", "ServiceUnavailableException",
)  # fmt: skip
#: By status, the types of errors that have no more specific type.
_TYPES = {400: _BAD_REQUEST, 404: "ModelNotFoundException", 503: _UNAVAILABLE}
#: The types of those errors of Shoal's that TorchServe does not have.
_OURS: dict[type[ShoalError], str] = {KeyLimitError: _UNAVAILABLE, PoisonRefusedError: _BAD_REQUEST}
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


class RefusedError(InternalError):
    """An error with a status and a type of TorchServe's own; to clients of other protocols it is an internal error."""

    def __init__(self, fault: TorchServeFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class NoWorkerError(RefusedError):
    """A model has no worker that can take the request, or the model's queue is full."""

    def __init__(self, model: str, version: str | None) -> None:
        # The unpaired quotation mark behind the version is TorchServe's.
        asked = f'"{model}"' if not version else f'"{model}" Version {version}"'
        super().__init__(
            TorchServeFault(
                503,
                _UNAVAILABLE,
                f"Model {asked} has no worker to serve inference request. Please use scale workers API to add workers. "
                "If this is a sequence inference, please check if it is closed, or expired; or exceeds "
                "maxSequenceJobQueueSize",
            )
        )


def refused(code: int, kind: str, message: str) -> RefusedError:
    """A RefusedError with this status, type and message."""
    return RefusedError(TorchServeFault(code, kind, message))


RESOURCE_NOT_FOUND = TorchServeFault(
    404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document."
)
METHOD_NOT_ALLOWED = TorchServeFault(
    405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document."
)


def refusal_of(error: ShoalError, model: str = "", version: str | None = None) -> TorchServeFault:
    """The refusal for an error of a request; `model` and `version` are those that the request named, if any."""
    if isinstance(error, RefusedError):
        return error.fault
    sentence = str(error)
    if (fault := torchserve_fault(sentence)) is not None:
        return fault
    if isinstance(error, (UnauthenticatedError, PermissionDeniedError)):
        return TorchServeFault(error.http_status, "InvalidKeyException", sentence)
    if (kind := _OURS.get(type(error))) is not None:
        return TorchServeFault(error.http_status, kind, sentence)
    if isinstance(error, WorkerDiedError):
        return TorchServeFault(507 if error.was_killed else 500, _INTERNAL, "Worker died.")
    if isinstance(error, (QueueFullError, ModelGoneError)) and model:
        return NoWorkerError(model, version).fault
    if isinstance(error, (InvalidArgumentError, CancelledError)):
        return TorchServeFault(400, _BAD_REQUEST, sentence)
    if isinstance(error, UnavailableError):
        return TorchServeFault(503, _UNAVAILABLE, sentence)
    return TorchServeFault(error.http_status, _TYPES.get(error.http_status, _INTERNAL), sentence)


def refusal_response(fault: TorchServeFault, headers: Headers = ()) -> Response:
    """The response for a refusal."""
    code, kind, message = fault
    return pretty(code, {"code": code, "type": kind, "message": encodable(message)}, headers)


def error_response(error: ShoalError, model: str = "", version: str | None = None) -> Response:
    """The response for an error, see `refusal_of`."""
    headers = CHALLENGE if isinstance(error, UnauthenticatedError) else ()
    if isinstance(error, KeyLimitError):
        headers = (("Retry-After", str(error.retry_after_s)),)
    return refusal_response(refusal_of(error, model, version), headers)


def pretty(status: int, value: object, headers: Headers = ()) -> Response:
    """A response whose body is `value` as TorchServe writes JSON: indented by two spaces, with a newline at its end."""
    return Response(status, JSON_CONTENT + headers, (orjson.dumps(value, option=_PRETTY),))
