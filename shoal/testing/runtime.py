"""The server as a Python model in this process sees it: the other models of the test and their control."""

import threading
from collections.abc import Callable
from typing import Protocol

from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor, TritonModelException
from triton_python_backend_utils.bls import needs_decoupled
from triton_python_backend_utils.errors import as_triton_error
from triton_python_backend_utils.runtime import Runtime

from shoal.datatypes import BYTES
from shoal.errors import InternalError, ShoalError
from shoal.frontend.prepared import PreparedRequest
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput
from shoal.testing.batcher import Batcher
from shoal.testing.requests import validated
from shoal.testing.tensors import Answer, Output
from shoal.workers.tensors import encode_strings

OnResponse = Callable[[InferenceResponse | None, bool], None]


class Models(Protocol):
    """All models of the test, by name."""

    def lookup(self, name: str, version: str | None) -> ModelEntry:
        """The version that a request means. Raises what a client would be told."""
        ...

    def load(self, name: str, config: str | None, files: dict[str, bytes] | None) -> None:
        """Load a model, or load it again. Raises ShoalError."""
        ...

    def unload(self, name: str) -> None:
        """Unload a model if it is loaded."""
        ...


class InlineRuntime(Runtime):
    """What one instance sees. Requests to other models go through their schedulers, on the test's clock."""

    def __init__(self, models: Models, batcher: Batcher) -> None:
        self._models = models
        self._batcher = batcher

    def submit(self, request: InferenceRequest, decoupled: bool, on_response: OnResponse) -> Callable[[], None]:
        """Queue the request; it runs when the model waits for the response."""

        def hear(answer: Answer | None, is_final: bool) -> None:
            on_response(None if answer is None else _response(answer), is_final)

        try:
            sent = self._batcher.submit(self._prepare(request, decoupled=decoupled), hear)
        except ShoalError as error:
            hear(error, True)
            return lambda: None
        return lambda: self._batcher.cancel(sent)

    def wait(self, changed: threading.Condition, has_come: Callable[[], bool]) -> None:
        """Run what is due, meanwhile, in the thread that waits."""
        changed.release()
        try:
            self._batcher.run_until(has_come)
        finally:
            changed.acquire()

    def load_model(self, name: str, config: str, files: dict[str, bytes] | None) -> None:
        """Load a model. Raises TritonModelException."""
        try:
            self._models.load(name, config or None, files)
        except ShoalError as error:
            raise TritonModelException(str(error)) from error

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; no model has others that are unloaded with it."""
        del unload_dependents
        self._models.unload(name)

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a model, or one version of it, is loaded."""
        try:
            self._models.lookup(name, version or None)
        except ShoalError:
            return False
        return True

    def _prepare(self, request: InferenceRequest, *, decoupled: bool) -> PreparedRequest:
        """The request as the batcher takes it. Raises ShoalError where the model would not be asked."""
        name, version = request._model_name or "", request._model_version
        entry = self._models.lookup(name, None if version < 0 else str(version))
        if entry.is_decoupled and not decoupled:
            raise InternalError(needs_decoupled(name))
        return validated(
            entry,
            request.request_id(),
            [_input(tensor) for tensor in request.inputs()],
            request.requested_output_names(),
            request._parameters,
            0,
            request.timeout(),
            request.correlation_id(),
            request.flags(),
        )


def _input(tensor: Tensor) -> ParsedInput:
    array = tensor._host()
    if tensor._datatype is BYTES:
        return ParsedInput(tensor.name(), BYTES, array.shape, memoryview(encode_strings(array)), array.size)
    return ParsedInput(tensor.name(), tensor._datatype, array.shape, memoryview(array.tobytes()), -1)


def _response(answer: Answer) -> InferenceResponse:
    if isinstance(answer, ShoalError):
        return InferenceResponse(error=as_triton_error(answer))
    outputs, parameters = answer
    response = InferenceResponse([_tensor(output) for output in outputs])
    response._parameters = parameters
    return response


def _tensor(output: Output) -> Tensor:
    name, datatype, array = output
    return Tensor._made(name, datatype, array.shape, array)
