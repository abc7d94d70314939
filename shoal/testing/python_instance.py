"""An instance of a Python model: its TritonPythonModel, called in the thread of whoever waits for an answer."""

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from triton_python_backend_utils import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceResponse,
    Tensor,
)
from triton_python_backend_utils.errors import as_shoal_error
from triton_python_backend_utils.response_sender import outputs_of
from triton_python_backend_utils.runtime import Runtime

from shoal.datatypes import BYTES
from shoal.errors import CancelledError, InternalError, ShoalError
from shoal.model_config.autocomplete import ModelIO
from shoal.request import Parameters
from shoal.star.validation import PreparedInput
from shoal.testing.event_loop import VirtualEventLoop
from shoal.testing.requests import OpenRequest
from shoal.testing.surroundings import Surroundings
from shoal.testing.tensors import Answer, Output, with_cause
from shoal.workers.backends.backend import Model
from shoal.workers.backends.python.model import Identity, PythonModel, Responses


class Desk(Protocol):
    """Where answers go, and what the time is."""

    def time_ns(self) -> int:
        """What the clock shows."""
        ...

    def wake(self) -> None:
        """Whoever waits looks again."""
        ...

    def tell(self, request: OpenRequest, answer: Answer | None, *, is_final: bool) -> None:
        """One response, an error in place of one, or the end alone."""
        ...

    def fail_later(self, request: OpenRequest, error: ShoalError) -> None:
        """The same for its end, by whoever waits next: for finalizers, which wait for nothing themselves."""
        ...

    def queue_again(self, request: OpenRequest) -> None:
        """Back into its queue, unanswered."""
        ...


class PythonInstance:
    """One of them."""

    def __init__(self, model: Model, runtime: Runtime, desk: Desk) -> None:
        self.name = model.instance_name
        runtime.model_dir = model.version_dir
        identity = Identity(model.name, model.version, model.instance_name, model.version_dir, model.file)
        self._model = PythonModel(identity, model.config)
        self._surroundings = Surroundings(os.path.dirname(model.version_dir) + os.sep, runtime)
        self._desk = desk
        # Changed by load: a model whose execute is a coroutine has a loop.
        self.loops: Sequence[VirtualEventLoop] = ()

    def describe(self) -> ModelIO:
        """What the model's auto_complete_config makes of the configuration. Raises InternalError."""
        with self._surroundings.enter():
            return ModelIO((), (), self._model.auto_complete())

    def load(self) -> None:
        """Import the model and initialize it. Raises InternalError with its traceback."""
        with self._surroundings.enter():
            self._model.load()
        if self._model.is_async:
            self.loops = (VirtualEventLoop(self._desk.time_ns, self._desk.wake, self._surroundings.enter),)

    def execute(self, requests: Sequence[OpenRequest]) -> Mapping[int, Answer]:
        """Run one batch. Coroutines begin when their loop runs, and overlap."""
        served = [ServedRequest(each, self._desk, is_decoupled=self._model.is_decoupled) for each in requests]
        if self._model.is_async:
            self.loops[0].begin(self._run(served))
            return {}
        with self._surroundings.enter():
            try:
                return self._answers(served, self._model.execute(served))
            except Exception as error:  # noqa: BLE001 - the rim: whatever a model raises is the answer to its requests
                return self._failures(served, error)

    async def _run(self, served: Sequence["ServedRequest"]) -> None:
        answers: Mapping[int, Answer]
        try:
            answers = self._answers(served, await self._model.execute_async(served))
        except Exception as error:  # noqa: BLE001 - the rim, as above
            answers = self._failures(served, error)
        for position, answer in answers.items():
            self._desk.tell(served[position].open_request, answer, is_final=True)

    def _answers(self, served: Sequence["ServedRequest"], responses: Responses) -> dict[int, Answer]:
        """What was returned; a request that has None is answered by its sender, or goes back into the queue."""
        answers: dict[int, Answer] = {}
        for position, (request, response) in enumerate(zip(served, responses, strict=True)):
            if response is not None:
                answers[position] = answer_of(response)
            elif request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                self._desk.queue_again(request.open_request)
            elif request._sender is None:
                answers[position] = InternalError(
                    f"Python model '{self.name}' has not taken the response sender of a request, so nothing can "
                    "answer it."
                )
        return answers

    def _failures(self, served: Sequence["ServedRequest"], error: Exception) -> dict[int, Answer]:
        # Without our own frame: the traceback that clients are shown begins in the model.
        traceback = error.__traceback__
        failure = self._model.as_failure(error.with_traceback(traceback and traceback.tb_next))
        return dict.fromkeys(range(len(served)), with_cause(failure, error))

    def unload(self) -> None:
        """Let go of the model. Raises InternalError where it cannot tidy up."""
        for loop in self.loops:
            loop.end()
        with self._surroundings.enter():
            self._model.finalize()


def answer_of(response: InferenceResponse) -> Answer:
    """A model's response as whoever waits for it is told."""
    error = response.error()
    return as_shoal_error(error) if error is not None else (outputs_of(response), response._parameters)


class ServedRequest(InferenceRequest):
    """A request as its model sees it. The tensors are the model's own: it may write into them."""

    def __init__(self, request: OpenRequest, desk: Desk, *, is_decoupled: bool) -> None:
        prepared = request.prepared
        super().__init__(
            request_id=prepared.id,
            correlation_id=prepared.correlation_id,
            inputs=[_tensor(each) for each in prepared.inputs],
            requested_output_names=sorted([each.name for each in prepared.outputs] or prepared.entry.signature.outputs),
            model_name=prepared.entry.name,
            model_version=prepared.entry.version,
            flags=prepared.flags,
            timeout=prepared.timeout_us,
        )
        self._parameters = prepared.parameters  # which may have floats, as a model's own requests may not
        self._is_decoupled = is_decoupled
        self._desk = desk
        self.open_request = request

    def _open_channel(self) -> "_Channel":
        return _Channel(self.open_request, self._desk)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.open_request.is_cancelled


class _Channel:
    """The way to whoever waits for the answers to one request."""

    def __init__(self, request: OpenRequest, desk: Desk) -> None:
        self._request = request
        self._desk = desk

    def send(self, outputs: Sequence[Output], parameters: Parameters | None = None, *, final: bool) -> None:
        """One response."""
        self._tell((outputs, parameters or {}), is_final=final)

    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        """An error in the place of a response."""
        self._tell(error, is_final=final)

    def fail_later(self, error: ShoalError) -> None:
        """The same, in the place of the last, by another thread."""
        self._desk.fail_later(self._request, error)

    def finish(self) -> None:
        """No more responses."""
        self._tell(None, is_final=True)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return self._request.is_cancelled

    @property
    def is_open(self) -> bool:
        """Whether another response may follow."""
        return self._request.is_open

    def reschedule(self) -> None:
        """Back into its queue, unanswered."""
        self._desk.queue_again(self._request)

    def _tell(self, answer: Answer | None, *, is_final: bool) -> None:
        if not self._request.is_open:
            raise CancelledError("the request has been answered")
        self._desk.tell(self._request, answer, is_final=is_final)


def _tensor(given: PreparedInput) -> Tensor:
    assert isinstance(given.data, memoryview), "a test has no client with memory of its own"
    if given.datatype is BYTES:
        return Tensor._made(given.name, BYTES, given.shape, None, given.data)
    array = np.frombuffer(bytearray(given.data), given.datatype.dtype).reshape(given.shape)
    return Tensor._made(given.name, given.datatype, given.shape, array)
