"""InferenceRequest: a request of a client to this model, or of this model to another."""

from typing import Any, Final

from triton_python_backend_utils import bls
from triton_python_backend_utils.arguments import UINT32_MAX, integer
from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.model_request import ModelRequest
from triton_python_backend_utils.response import InferenceResponse
from triton_python_backend_utils.response_sender import InferenceResponseSender, ResponseChannel
from triton_python_backend_utils.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2


class InferenceRequest(ModelRequest):
    """One request: made by a model, or by the server for a client's request; the latter has a channel for responses."""

    #: The worker's object for the client's request; None if a model has made this request.
    _request: Any = None
    _is_decoupled = False
    # These fields are changed by get_response_sender and set_release_flags.
    _sender: InferenceResponseSender | None = None
    _release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    # -- answering, for a request that a server has made --

    def is_cancelled(self) -> bool:
        """Whether the client does not wait for the answer any more."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender that answers the request in place of execute's result; the same at each call. Raises
        TritonModelException for a request that a model has made."""
        if self._sender is None:
            self._sender = InferenceResponseSender(self._open_channel(), self._is_decoupled)
        return self._sender

    def _open_channel(self) -> ResponseChannel:
        """The channel for responses, overridden for a server's requests. Raises TritonModelException for requests
        that a model has made."""
        raise TritonModelException("Only a request that a server has made has a response sender.")

    def set_release_flags(self, flags: int) -> None:
        """Set whether the request returns to its queue when execute ends, without an answer
        (TRITONSERVER_REQUEST_RELEASE_RESCHEDULE). Raises TritonModelException for unknown flags, TypeError for no
        number."""
        if integer("flags", flags, 0, UINT32_MAX) not in (
            TRITONSERVER_REQUEST_RELEASE_ALL,
            TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
        ):
            raise TritonModelException(f"Unsupported release flags {flags!r}.")
        self._release_flags = flags

    # -- BLS: a model calls another --

    def exec(self, decoupled: bool = False) -> "InferenceResponse | bls.ResponseIterator":
        """Send the request to its model and wait for the response; with `decoupled`, iterate over the responses."""
        return bls.execute(self, decoupled)

    async def async_exec(self, decoupled: bool = False) -> "InferenceResponse | bls.ResponseIterator":
        """Send the request to its model and await the response, in a coroutine; with `decoupled`, iterate over the
        responses."""
        return await bls.execute_async(self, decoupled)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name; None if there is none."""
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None
