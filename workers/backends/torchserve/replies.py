"""The response to one request of a batch: the bodies of its rows, in one part or several.

A request of TorchServe's protocol has one row. A request of Triton's protocols may have more: its response has as many
rows, and an error in one row fails the whole request. Parts of a response are sent as they come if the model is
decoupled and the request has one row; otherwise they are joined into one response.
"""

from collections.abc import Sequence

import numpy as np

from shoal.datatypes import BYTES
from shoal.errors import ShoalError
from shoal.request import Parameters
from shoal.workers.answers import Answers
from shoal.workers.backends.torchserve.calls import INPUT
from shoal.workers.requests import Request
from shoal.workers.response_sender import ResponseSender
from shoal.workers.tensors import Output

OUTPUT = "prediction"


class Reply:
    """The response to one request. It is not to be used by several threads at once."""

    def __init__(
        self,
        request: Request,
        answers: Answers,
        num_rows: int,
        sender: ResponseSender | None,
        *,
        streams: bool = False,
        num_parts: int = 0,
    ) -> None:
        """`sender` answers the request if that may happen after its batch has been executed, else it is None. With
        `streams`, parts are sent as they come; earlier executions of the request have sent `num_parts` of them."""
        self.request = request  # the request's tensors can be read only while its batch is executed
        self._answers = answers
        self._sender = sender
        self._streams = streams and sender is not None and num_rows == 1
        # These fields are changed as parts are added, and at the end.
        self._bodies: list[bytes] = [b""] * num_rows
        self._num_missing = num_rows
        self._parameters: Parameters | None = None
        self.num_parts = num_parts  # parts that have been added
        self._is_over = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the client does not wait any more."""
        return self._sender is not None and self._sender.is_cancelled

    def add_part(self, row: int, body: bytes, parameters: Parameters | None) -> None:
        """Add a part of a row's body, except the last part. Raises ShoalError if the part cannot be sent."""
        self.num_parts += 1
        if self._is_over:
            return
        if self._streams:
            assert self._sender is not None
            self._sender.send(self._outputs((body,)), parameters if self.num_parts == 1 else None, final=False)
        else:
            self._bodies[row] += body

    def add(self, row: int, body: bytes, parameters: Parameters | None) -> None:
        """Add the last part of a row's body; the response is complete once this was called for each row."""
        if self._is_over:
            return
        self._bodies[row] = self._bodies[row] + body if self._bodies[row] else body
        self._parameters = self._parameters or parameters
        self._num_missing -= 1
        if self._num_missing:
            return
        self._is_over = True
        outputs = self._outputs(self._bodies)
        if self._sender is not None:
            # Status and headers of a stream, which are in the parameters, were sent with the first part.
            self._sender.send(outputs, None if self._streams and self.num_parts else self._parameters, final=True)
        else:
            self._answers.add_outputs(self.request, outputs, self._parameters)

    def end_sequence(self) -> None:
        """Report that the request is the last of its sequence; no effect if it belongs to no sequence."""
        if self._sender is not None:
            self._sender.end_sequence()

    def execute_again(self) -> None:
        """Return the request, for which a part was sent, to its queue. Raises InternalError if the request is
        answered."""
        assert self._sender is not None, "requests that are executed again have senders"
        self._is_over = True
        self._sender.reschedule()

    def fail(self, error: ShoalError) -> None:
        """Answer the request with an error, unless it has been answered."""
        if self._is_over:
            return
        self._is_over = True
        if self._sender is not None:
            self._sender.fail(error)
        else:
            self._answers.fail(self.request.position, error)

    def _outputs(self, bodies: Sequence[bytes]) -> list[Output]:
        array = np.empty(len(bodies), BYTES.dtype)
        array[:] = bodies
        return [(OUTPUT, BYTES, array.reshape(self.request.parsed.inputs[INPUT][1]))]
