"""A client's request as its model sees it: an InferenceRequest that computes each property only when it is used.

The request's tensors are views of the client's block, read-only and valid until the request is answered.
"""

from collections.abc import Mapping
from typing import Any

from triton_python_backend_utils import InferenceRequest, InferenceTrace, Tensor
from triton_python_backend_utils.parameters import as_json
from triton_python_backend_utils.tensor import TensorSource

from shoal.errors import ShoalError
from shoal.shm.layout import B
from shoal.workers.answers import Answers
from shoal.workers.backends.device_input import DeviceInput
from shoal.workers.cuda_regions import GpuTensor
from shoal.workers.requests import PLACED_IN_BLOCK, Request
from shoal.workers.response_sender import ResponseSender


class ModelTraits:
    """The properties that all requests to one model share."""

    def __init__(self, name: str, version: int, output_names: tuple[str, ...], is_decoupled: bool) -> None:
        self.name = name
        self.version = version
        self.output_names = output_names  # the outputs of a request that names none
        self.is_decoupled = is_decoupled


class ServedRequest(InferenceRequest):
    """A client's request as the model gets it. With `has_copies` the model gets copies of the inputs, which it may
    write to."""

    def __init__(self, request: Request, answers: Answers, model: ModelTraits, has_copies: bool) -> None:
        self._request: Request = request
        self.request = request
        self.answers = answers
        self._model = model
        self._is_decoupled = model.is_decoupled
        self._model_name = model.name
        self._model_version = model.version
        # These fields are changed by the methods.
        self._has_copies = has_copies
        self._tensors: list[Tensor] | None = None
        self._channel: ResponseSender | None = None
        self._other_flags: int | None = None

    # -- for the backend --

    def _open_channel(self) -> ResponseSender:
        if self._channel is None:
            self._channel = self.answers.sender(self.request)
        return self._channel

    def fail(self, error: ShoalError) -> None:
        """Answer the request with this error, unless it has been answered."""
        if self._channel is not None:
            self._channel.fail(error)
        else:
            self.answers.fail(self.request.position, error)

    def copy_inputs(self) -> None:
        """Copy the inputs, so that the model may write to them."""
        self._has_copies = True
        self._tensors = None

    # -- for the model --

    def inputs(self) -> list[Tensor]:
        if self._tensors is None:
            self._tensors = self._open()
        return self._tensors

    def _open(self) -> list[Tensor]:
        request = self.request
        given: Mapping[str, Any] = request.tensors
        ref, tensors = request.record[B.BLOCK], []
        for name, (spec, shape, offset, nbytes) in request.parsed.inputs.items():
            data, source = given[name], TensorSource(request.parsed.lent.get(name, ref), offset, nbytes, None)
            if type(data) is GpuTensor:
                is_placed = request.parsed.on_gpu[name] == PLACED_IN_BLOCK
                placed = source._replace(ref=source.ref or ref) if is_placed else None
                there = DeviceInput(data, shape, spec.datatype, placed)
                tensors.append(Tensor._on_gpu(name, spec.datatype, shape, there))
                continue
            if type(data) is memoryview:
                tensor = Tensor._made(name, spec.datatype, shape, None, data, source)
            else:
                tensor = Tensor._made(name, spec.datatype, shape, data, None, source)
            if self._has_copies:
                tensor._own()
            tensors.append(tensor)
        return tensors

    def request_id(self) -> str:
        return self.request.id

    def correlation_id(self) -> int | str:
        return self.request.correlation_id

    def flags(self) -> int:
        return self.request.flags if self._other_flags is None else self._other_flags

    def set_flags(self, flags: int) -> None:
        """Replace what the method `flags` returns; the request's place in its sequence stays as it is."""
        self._other_flags = flags

    def timeout(self) -> int:
        return self.request.timeout_us

    def parameters(self) -> str:
        return as_json(self.request.options.parameters)

    def requested_output_names(self) -> set[str]:
        return set(self.request.parsed.share[1] or self._model.output_names)

    def trace(self) -> InferenceTrace:
        trace = InferenceTrace()
        trace._key = self.request.key
        return trace

    def is_cancelled(self) -> bool:
        return self.request.is_cancelled()
