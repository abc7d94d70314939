"""A request between its submission and its last response, and how one is made: validated as a front end does it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.prepared import (
    SEQUENCE_END,
    SEQUENCE_START,
    PreparedRequest,
    RequestedOutput,
    block_nbytes,
    write_block,
)
from shoal.frontend.v2.infer import parse_parameter
from shoal.request import Parameters
from shoal.shm.layout import unpack_span
from shoal.star.models import ModelEntry
from shoal.star.validation import ParsedInput, validate
from shoal.testing.tensors import Answer, client_outputs, parse_inputs
from shoal.workers.requests import Request, RequestReader

#: Told of each response, of an error in place of one, or of None: the end alone; and whether it was the last.
Listener = Callable[[Answer | None, bool], None]


def prepare(
    entry: ModelEntry,
    inputs: Mapping[str, Any],
    *,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    request_id: str = "",
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    priority: int = 0,
    timeout_us: int = 0,
) -> PreparedRequest:
    """A request that may be queued. Raises what a client would be told."""
    for key in parameters or ():
        if key.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
    given = {key: parse_parameter(key, value) for key, value in (parameters or {}).items()}
    flags = SEQUENCE_START * sequence_start | SEQUENCE_END * sequence_end
    parsed = parse_inputs(entry.signature, inputs)
    return validated(entry, request_id, parsed, outputs, given, priority, timeout_us, sequence_id, flags)


def validated(
    entry: ModelEntry,
    request_id: str,
    inputs: Sequence[ParsedInput],
    outputs: Sequence[str],
    parameters: Parameters,
    priority: int,
    timeout_us: int,
    sequence_id: int | str,
    flags: int,
) -> PreparedRequest:
    """The request, if it is one for this model. Raises InvalidArgumentError with Triton's sentences."""
    valid, rows, shape_key = validate(entry.signature, request_id, inputs, outputs, sequence_id)
    wanted = tuple([RequestedOutput(name, True, 0) for name in outputs])
    return PreparedRequest(
        entry, request_id, valid, wanted, True, parameters, rows, shape_key, priority, timeout_us, sequence_id, flags
    )  # fmt: skip


class OpenRequest:
    """One request that was accepted."""

    def __init__(
        self, key: int, prepared: PreparedRequest, reader: RequestReader, now_ns: int, listener: Listener
    ) -> None:
        self.prepared = prepared
        self.queued = QueuedRequest(
            key, prepared.rows, prepared.shape_key, now_ns, prepared.priority, prepared.timeout_us
        )
        self._reader = reader
        self._listener = listener
        # Changed by the batcher.
        self.is_open = True
        self.is_cancelled = False
        self.is_begun = False  # an instance has it
        self.is_sent_for = False  # its execution is over, the model answers when it likes

    @property
    def activity(self) -> str:
        """What becomes of it, in words."""
        if self.is_sent_for:
            return "was executed, and keeps it open"
        return "is executing it" if self.is_begun else "has it in its queue"

    def as_seen(self, position: int) -> Request:
        """The request as a backend sees it, at this position of its batch."""
        memory = memoryview(bytearray(block_nbytes(self.prepared)))
        offset, nbytes = unpack_span(write_block(self.prepared, memory))
        block = memory.toreadonly()
        return self._reader.open(position, block, block[offset : offset + nbytes].tobytes())

    def tell(self, answer: Answer | None, *, is_final: bool) -> None:
        """Hand over one response, an error in place of one, or the end alone."""
        if answer is None or isinstance(answer, ShoalError):
            self._listener(answer, is_final)
            return
        outputs, parameters = answer
        try:
            wanted = [output.name for output in self.prepared.outputs]
            self._listener((client_outputs(self.prepared.entry, outputs, wanted), parameters), is_final)
        except ShoalError as error:
            self._listener(error, is_final)
