"""InferenceResponse: a response of this model to one request, or of another model that this one called."""

from collections.abc import Mapping, Sequence
from typing import Any

from triton_python_backend_utils import parameters as request_parameters
from triton_python_backend_utils.errors import TritonError, TritonModelException
from triton_python_backend_utils.tensor import Tensor


class InferenceResponse:
    """A response: tensors, or an error in their place, and parameters. Raises TypeError or TritonModelException for
    arguments of other types."""

    __slots__ = ("__weakref__", "_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError(f"each of 'output_tensors' must be a Tensor, found type {type(tensor)}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"'error' of an InferenceResponse must be a TritonError, found type {type(error)}")
        self._output_tensors = () if error is not None else output_tensors
        self._error = error
        self._parameters = request_parameters.checked(parameters) if parameters else {}

    def output_tensors(self) -> list[Tensor]:
        """The output tensors; none if there is an error."""
        return list(self._output_tensors)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, None if there is none."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters, as JSON."""
        return request_parameters.as_json(self._parameters)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name; None if there is none."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
