"""InferenceResponseSender: responses to one request, sent from any thread, any number if the model is decoupled."""

import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from shoal.datatypes import Datatype
from shoal.errors import InternalError, ShoalError
from triton_python_backend_utils.errors import TritonModelException, as_shoal_error
from triton_python_backend_utils.parameters import Parameters
from triton_python_backend_utils.response import InferenceResponse

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1

_UNABLE = "Unable to send response. "
_DROPPED = "The model dropped the response sender of a request without an answer."
#: Name, datatype and array of an output, in the form in which the server takes it.
Output = tuple[str, Datatype, NDArray[Any]]


class ResponseChannel(Protocol):
    """The channel for the responses to one request."""

    def send(self, outputs: Sequence[Output], parameters: Parameters | None = None, *, final: bool) -> None:
        """Send one response. Raises ShoalError if it cannot be delivered."""
        ...

    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        """Send an error in place of a response."""
        ...

    def fail_later(self, error: ShoalError) -> None:
        """Send an error in place of the last response, by another thread. Never waits, and may be called whatever locks
        are held."""
        ...

    def finish(self) -> None:
        """End the request without a further response."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether the client does not wait any more."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the request's last response has yet to be sent."""
        ...


class InferenceResponseSender:
    """The sender of the responses to one request."""

    def __init__(self, channel: ResponseChannel, is_decoupled: bool) -> None:
        self._channel = channel
        self._is_decoupled = is_decoupled
        # These fields are changed by send, in any thread.
        self._lock = threading.Lock()
        self._num_sent = 0
        self._is_closed = False
        # The error that the client gets if the model drops the sender unused; set before the model gets the sender.
        self._if_dropped: ShoalError | None = None

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response; the last one has the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL, or that flag is sent
        afterwards without a response.

        Raises TritonModelException for a wrong use, and if the response cannot be delivered, TypeError for anything but
        a response; a response that was refused does not count as sent.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"'response' must be an InferenceResponse, found type {type(response)}")
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"{_UNABLE}Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        is_final = bool(flags)  # a bool, as the compiled build demands, for numpy's integers, too
        self._count(response is not None, is_final)
        try:
            if response is not None:
                # The first response of a model that is not decoupled is its last; a final flag that comes later has no
                # effect.
                self._deliver(response, is_final or not self._is_decoupled)
            elif self._is_decoupled:
                self._channel.finish()
        except ShoalError as error:
            raise TritonModelException(str(error)) from error

    def is_cancelled(self) -> bool:
        """Whether the client does not wait for the answer any more."""
        return self._channel.is_cancelled

    def __del__(self) -> None:
        # If the sender is deleted before the request's end, nothing would ever answer the request. This may run in any
        # thread, at any point.
        if self._channel.is_open:
            self._channel.fail_later(self._if_dropped or InternalError(_DROPPED))

    def _count(self, has_response: bool, is_final: bool) -> None:
        with self._lock:
            if not self._is_decoupled and has_response and self._num_sent:
                raise TritonModelException(f"{_UNABLE}Non-decoupled model cannot send more than one response.")
            if not self._is_decoupled and not has_response and not self._num_sent:
                raise TritonModelException(
                    f"{_UNABLE}Non-decoupled model cannot send complete final before sending a response."
                )
            if self._is_closed:
                raise TritonModelException(f"{_UNABLE}Response sender has been closed.")
            self._is_closed = is_final
            self._num_sent += 1

    def _deliver(self, response: InferenceResponse, is_final: bool) -> None:
        error = response.error()
        if error is not None:
            self._channel.fail(as_shoal_error(error), final=is_final)
        else:
            self._channel.send(outputs_of(response), response._parameters or None, final=is_final)


def outputs_of(response: InferenceResponse) -> list[Output]:
    """The outputs of a response in the form in which the server takes them."""
    return [(tensor._name, tensor._datatype, tensor._outgoing()) for tensor in response._output_tensors]
