"""TorchServe's errors: the status, the type and the message that its clients know, for each error of Shoal's.

A worker of the backend `torchserve`, and the supervisor about archives, choose them themselves, in a sentence:

    ts:503:InternalServerException:Prediction failed

Pure. Front-end processes.
"""

import re
from typing import NamedTuple

import orjson

from shoal.errors import CancelledError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.frontend.response import JSON_CONTENT, Headers, Response
from shoal.reasons import ModelGoneError, QueueFullError, WorkerDiedError

#: A sentence that says how TorchServe's clients get it.
_CHOSEN = re.compile(r"(?:\[request id: [^]]*\] )?ts:([1-5][0-9]{2}):([A-Za-z]{1,60}):(.*)", re.DOTALL)
_BAD_REQUEST, _INTERNAL, _UNAVAILABLE = (
    "BadRequestException", "InternalServerException", "ServiceUnavailableException",
)  # fmt: skip
#: The types of errors by their status, where nothing chooses another.
_TYPES = {400: _BAD_REQUEST, 404: "ModelNotFoundException", 503: _UNAVAILABLE}
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


class Refusal(NamedTuple):
    """An error as TorchServe's clients see it."""

    code: int
    kind: str  # the member `type`: the name of one of TorchServe's exceptions
    message: str


class RefusedError(ShoalError):
    """An error with a status and a type of TorchServe's own."""

    code, wire, http_status, grpc_status, words = "INTERNAL", 2, 500, 13, "Internal"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class NoWorkerError(RefusedError):
    """A model has no worker that can take the request, or its queue is full."""

    def __init__(self, model: str, version: str | None) -> None:
        # The quotation mark before "has" is TorchServe's.
        asked = f'"{model}"' if version is None else f'"{model}" Version {version}"'
        super().__init__(
            Refusal(
                503,
                _UNAVAILABLE,
                f"Model {asked} has no worker to serve inference request. Please use scale workers API to add workers. "
                "If this is a sequence inference, please check if it is closed, or expired; or exceeds "
                "maxSequenceJobQueueSize",
            )
        )


def refused(code: int, kind: str, message: str) -> RefusedError:
    """The error with this status, type and message."""
    return RefusedError(Refusal(code, kind, message))


RESOURCE_NOT_FOUND = Refusal(
    404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document."
)
METHOD_NOT_ALLOWED = Refusal(
    405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document."
)
INVALID_MESSAGE = Refusal(400, _BAD_REQUEST, "Invalid HTTP message.")


def refusal_of(error: ShoalError, model: str = "", version: str | None = None) -> Refusal:
    """The refusal for an error of a request; `model` and `version` are those that it asked for, if any."""
    if isinstance(error, RefusedError):
        return error.refusal
    sentence = str(error)
    if (chosen := _CHOSEN.fullmatch(sentence)) is not None:
        return Refusal(int(chosen[1]), chosen[2], chosen[3])
    if isinstance(error, WorkerDiedError):
        return Refusal(507 if error.was_killed else 500, _INTERNAL, "Worker died.")
    if isinstance(error, (QueueFullError, ModelGoneError)) and model:
        return NoWorkerError(model, version).refusal
    if isinstance(error, (InvalidArgumentError, CancelledError)):
        return Refusal(400, _BAD_REQUEST, sentence)
    if isinstance(error, UnavailableError):
        return Refusal(503, _UNAVAILABLE, sentence)
    return Refusal(error.http_status, _TYPES.get(error.http_status, _INTERNAL), sentence)


def refusal_response(refusal: Refusal, headers: Headers = ()) -> Response:
    """The response for a refusal."""
    code, kind, message = refusal
    # A message may quote what a client or a model sent: lone surrogates have no UTF-8 and orjson refuses them.
    printable = message.encode("utf-8", "backslashreplace").decode("utf-8")
    return pretty(code, {"code": code, "type": kind, "message": printable}, headers)


def error_response(error: ShoalError, model: str = "", version: str | None = None) -> Response:
    """The response for an error, see `refusal_of`."""
    return refusal_response(refusal_of(error, model, version))


def pretty(status: int, value: object, headers: Headers = ()) -> Response:
    """A response whose body is `value` as TorchServe writes JSON: indented by two spaces, with a newline at its end."""
    return Response(status, JSON_CONTENT + headers, (orjson.dumps(value, option=_PRETTY),))
