"""The contents of a request: its tensors and its settings. Answering and sending are in request.py."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from triton_python_backend_utils import parameters as request_parameters
from triton_python_backend_utils.arguments import INT64_MAX, INT64_MIN, UINT32_MAX, UINT64_MAX, integer, text
from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.tensor import Tensor

TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 2


class PreferredMemory:
    """The kind of memory in which a model prefers to get the outputs of a request that it makes."""

    def __init__(self, preferred_memory_type: int = TRITONSERVER_MEMORY_CPU, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace that a request belongs to; a model passes it on in requests that it makes."""

    #: The key, i.e. the name in every process, of the request whose trace this is; 0 for a trace that a model has made.
    _key = 0

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """The OpenTelemetry context as JSON, {"traceparent": …}; None if the request is not traced."""
        return self._context


#: The defaults for requests that are made without `preferred_memory` or `trace`.
_CPU_MEMORY, _NO_TRACE = PreferredMemory(), InferenceTrace()
_Argument = TypeVar("_Argument")


class ModelRequest:
    """The checked contents of a request: that of a client to this model, or of this model to another. Raises TypeError
    for an argument of another type or out of range, TritonModelException for an empty name or input."""

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str | None = 0,
        inputs: Sequence[Tensor | None] | None = None,
        requested_output_names: Sequence[str | bytes] | None = None,
        model_name: str | bytes | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _CPU_MEMORY,
        trace: InferenceTrace = _NO_TRACE,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest needs inputs, requested_output_names and model_name")
        if correlation_id is None:
            raise TypeError("'correlation_id' must be an integer or a string")
        self._request_id = text("'request_id'", request_id)
        self._model_name = text("'model_name'", model_name)
        self._model_version = integer("'model_version'", model_version, INT64_MIN, INT64_MAX)
        self._flags = integer("'flags'", flags, 0, UINT32_MAX)
        self._timeout = integer("'timeout'", timeout, 0, UINT64_MAX)
        self._preferred_memory = _of("'preferred_memory'", preferred_memory, PreferredMemory)
        self._trace = _of("'trace'", trace, InferenceTrace)
        self._parameters = request_parameters.checked(parameters)
        if type(correlation_id) is int:
            if not 0 <= correlation_id <= UINT64_MAX:
                raise TypeError(f"'correlation_id' must be an integer from 0 to {UINT64_MAX}, found {correlation_id}")
        elif type(correlation_id) is not str:
            raise TritonModelException("Correlation ID must be integer or string")
        self._correlation_id = correlation_id
        given = [*inputs]
        if any(tensor is None for tensor in given):  # not `None in`: arrays compare their elements
            raise TritonModelException(self._is_empty("Input tensor"))
        self._inputs = tuple([_of("each of 'inputs'", tensor, Tensor) for tensor in given])
        if isinstance(requested_output_names, (str, bytes)):
            raise TypeError("'requested_output_names' must be a list of names, found one name")
        self._requested_output_names = tuple([text("each output's name", name) for name in requested_output_names])
        if "" in self._requested_output_names:
            raise TritonModelException(self._is_empty("Requested output name"))

    def _is_empty(self, what: str) -> str:
        request = f"request with id '{self._request_id}' and model name '{self._model_name}'"
        return f"{what} for {request} should not be empty."

    # -- its contents --

    def inputs(self) -> list[Tensor]:
        return list(self._inputs)

    def request_id(self) -> str:
        """The client's id of the request; "" if it gave none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The id of the sequence that the request belongs to; 0 if none."""
        return self._correlation_id

    def flags(self) -> int:
        """The request's flags: TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, …_SEQUENCE_END, both, or 0."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the request's flags. Raises TypeError for a value that is no number of 32 bits."""
        self._flags = integer("flags", flags, 0, UINT32_MAX)

    def timeout(self) -> int:
        """The time in microseconds that the request may wait in a queue; 0: the called model's default."""
        return self._timeout

    def parameters(self) -> str:
        """The request's parameters, as JSON."""
        return request_parameters.as_json(self._parameters)

    def requested_output_names(self) -> set[str]:
        return set(self._requested_output_names)

    def preferred_memory(self) -> PreferredMemory:
        """The kind of memory in which the outputs should be."""
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        """The trace that the request belongs to."""
        return self._trace


def _of(what: str, value: Any, kind: type[_Argument]) -> _Argument:
    """The `value` itself. Raises TypeError if it is no object of the class `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, found type {type(value)}")
    return value
