"""The results of handlers as bytes, and their errors as TorchServe's statuses and messages.

    element of the returned list     body
    bytes, bytearray, memoryview     as it is
    str                              UTF-8
    torch.Tensor                     what torch.save writes
    an exception                     the error of its request alone (ours; TorchServe fails the batch)
    anything else                    JSON with an indentation of two spaces, NaN allowed

Pure. Runs in a worker.
"""

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from ts.context import RequestProcessor
from ts.utils.util import PredictionException

from shoal.errors import InternalError, InvalidArgumentError, NotFoundError, ShoalError, UnavailableError
from shoal.request import Parameters
from shoal.workers.backends.torchserve import pretty
from shoal.workers.backends.torchserve.calls import PARAMETER
from shoal.workers.sentences import text_of

_TYPE = "InternalServerException"
_OUT_OF_RESOURCES = 507


class Failure(NamedTuple):
    """The error of a request as TorchServe's clients get it."""

    code: int
    message: str

    def as_error(self, *, is_torchserves: bool, detail: str = "") -> ShoalError:
        """The error with which a request is answered. With `is_torchserves` it has TorchServe's status, type and
        message, otherwise a sentence that says more."""
        if is_torchserves:
            return InternalError(f"ts:{self.code}:{_TYPE}:{self.message}")
        return _CLASSES.get(self.code, InternalError)(f"{self.message}: {detail}" if detail else self.message)


_CLASSES: Mapping[int, type[ShoalError]] = {
    400: InvalidArgumentError,
    404: NotFoundError,
    429: UnavailableError,
}

FAILED = Failure(503, "Prediction failed")
EXHAUSTED = Failure(_OUT_OF_RESOURCES, "Out of resources")
NO_LIST = Failure(503, "Invalid model predict output")
WRONG_LENGTH = Failure(503, "number of batch response mismatched")
UNSUPPORTED = Failure(503, "Unsupported model output data type.")


def failure_of(error: BaseException) -> Failure:
    """The failure that clients get for a handler's exception."""
    if isinstance(error, PredictionException):
        code = error.error_code
        is_status = type(code) is int and 100 <= code <= 999
        return Failure(_OUT_OF_RESOURCES if code == 413 else code if is_status else 500, str(error.message))
    if isinstance(error, MemoryError) or "CUDA" in text_of(error):
        return EXHAUSTED
    return FAILED


class WrongReturnError(Exception):
    """A handler's return value is no batch of results; `failure` is the error for its clients."""

    def __init__(self, failure: Failure, sentence: str) -> None:
        super().__init__(sentence)
        self.failure = failure


def checked(returned: object, num_calls: int) -> Sequence[Any]:
    """The list that a handler has returned. Raises WrongReturnError if the value is no list, or has another number of
    elements than `num_calls`."""
    if not isinstance(returned, list):
        raise WrongReturnError(
            NO_LIST, f"'handle' must return a list with one element per request, got {type(returned).__name__}"
        )
    if len(returned) != num_calls:
        raise WrongReturnError(
            WRONG_LENGTH, f"'handle' returned {len(returned)} elements for a batch of {num_calls} requests"
        )
    return returned


def body_of(element: object) -> bytes:
    """An element of a handler's list as the bytes of a body. Raises WrongReturnError for an element that
    json.dumps would refuse."""
    if type(element) is bytes:
        return element
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    if isinstance(element, str):
        return element.encode("utf-8", "surrogatepass")
    torch: Any = sys.modules.get("torch")  # None if torch is not imported; then the element is no tensor
    if torch is not None and isinstance(element, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(element, buffer)
        return buffer.getvalue()
    try:
        return pretty.dumps(element).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongReturnError(
            UNSUPPORTED,
            f"an element of type {type(element).__name__} has no form as a body: {text_of(error)}. Return bytes, str, "
            "a torch.Tensor or what json.dumps takes",
        ) from error


def parameters_of(processor: RequestProcessor) -> Parameters | None:
    """The response's parameter `ts`, which has the status and headers that a handler has set; None if it has set none.
    Raises InternalError for values that cannot be sent, such as a text with a lone surrogate."""
    code, headers = processor.get_response_status_code(), processor.get_response_headers()
    phrase = processor.get_response_status_phrase()
    if code == 200 and not headers and not phrase:
        return None
    try:
        texts = {str(name): str(value) for name, value in headers.items()}
        return {PARAMETER: orjson.dumps({"status": int(code), "phrase": phrase or "", "headers": texts}).decode()}
    except (TypeError, ValueError) as error:
        raise InternalError(f"the handler has set a status or header that cannot be sent: {text_of(error)}") from error
