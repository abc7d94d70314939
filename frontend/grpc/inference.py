"""The requests of a gRPC lane that wait for a model, and the calls that wait for them. One thread, the lane's."""

import time
from collections.abc import Sequence
from typing import Protocol

from shoal.frontend.grpc.framing import decompress
from shoal.frontend.grpc.inbox import ReceivedMessage
from shoal.frontend.grpc.opening import Opening
from shoal.frontend.grpc.service import refuse_while_exiting
from shoal.frontend.grpc.submission import GrpcSubmission, MessageTemplate, SubmittedMessage
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import TracedRequest
from shoal.shm.port import Port, Reply

#: Largest compressed message that the lane itself unpacks: gzip takes 4 ms a MB, in which no other call is served.
MAX_UNPACKED_BYTES = 1 << 20


class Asker(Protocol):
    """A call that has asked a model."""

    def replied(self, number: int, asked: SubmittedMessage, reply: Reply) -> None:
        """Take a reply, and release its block."""
        ...

    def give_up(self) -> None:
        """A fault of ours: log it, and end the connection."""
        ...


class Inference:
    """All requests in flight of one lane."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port
        self.submission = GrpcSubmission(state, port, state.grpc.header_forward_pattern)
        #: The block of a reply is no longer read.
        self.release = port.release
        # Changed by ask, forget and deliver.
        self._waiting: dict[int, tuple[Asker, SubmittedMessage, TracedRequest | None] | None] = {}

    def ask(
        self,
        asker: Asker,
        opening: Opening,
        received: ReceivedMessage,
        begun_s: float,
        deadline_s: float,
        *,
        is_stream: bool,
    ) -> tuple[int, SubmittedMessage]:
        """Put a request into shared memory; `asker` hears of its replies. Raises ShoalError: the block is free then.

        After `deadline_s` the client does not wait any more, if it has said when that is."""
        data, block, offset, is_compressed = received
        if self._state.exiting:
            if block is not None:
                self._port.slab.free(block.ref)
            refuse_while_exiting(self._state)
        if is_compressed:
            data = decompress(opening.encoding, data, MAX_UNPACKED_BYTES)
        number, asked = self.submission.submit(
            data,
            opening.metadata,
            block,
            offset,
            is_stream=is_stream,
            deadline_ns=deadline_ns(opening, deadline_s),
        )
        self._wait(asker, number, asked, opening, begun_s)
        return number, asked

    def ask_known(
        self,
        asker: Asker,
        template: MessageTemplate,
        id_: bytes,
        tensors: Sequence[bytes],
        opening: Opening,
        begun_s: float,
        deadline_s: float,
    ) -> int:
        """Like `ask`, for a message of a template that still holds. Raises ShoalError."""
        if self._state.exiting:
            refuse_while_exiting(self._state)
        number, asked = self.submission.submit_known(
            template, id_, tensors, time.monotonic_ns(), deadline_ns(opening, deadline_s)
        )
        self._wait(asker, number, asked, opening, begun_s)
        return number

    def model_of(self, received: ReceivedMessage) -> int:
        """The model that a message is for; 0 where that cannot be told before it is asked."""
        return 0 if received.is_compressed else self.submission.model_of(received.data)

    def asked(self, number: int) -> SubmittedMessage | None:
        """What was asked of a request that waits."""
        waiting = self._waiting.get(number)
        return None if waiting is None else waiting[1]

    def _wait(self, asker: Asker, number: int, asked: SubmittedMessage, opening: Opening, begun_s: float) -> None:
        trace = None if self._state.tracing is None else self._trace(number, asked, opening, begun_s)
        self._waiting[number] = asker, asked, trace

    def _trace(self, number: int, asked: SubmittedMessage, opening: Opening, begun_s: float) -> TracedRequest | None:
        """Begin a request's trace, where it is to be traced."""
        assert self._state.tracing is not None
        trace = self._state.tracing.sample(asked.prepared, opening.metadata)
        if trace is not None:
            block, span, start_ns = self._port.submitted(number)
            trace.received(int(begun_s * 1e9), start_ns)
            trace.submitted(block, span)
            trace.children = self._port.trace(number)
        return trace

    def forget(self, number: int) -> None:
        """Cancel a request: a queued one is dropped, a model at work is notified, later replies are released."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            self._waiting[number] = None
            if waiting[2] is not None:
                waiting[2].end()
            self._port.cancel(number)

    def release_token(self, token: tuple[int, int]) -> None:
        """Like `release`, once the last byte has left."""
        self._port.release(*token)

    def deliver(self) -> None:
        """Pass all replies that have come on to their calls."""
        waiting = self._waiting
        for reply in self._port.poll():
            number = reply.number
            entry = waiting.pop(number, None) if reply.is_final else waiting.get(number)
            if entry is None:
                if reply.block is not None:
                    self._port.release(number, reply.part)
                continue
            asker, asked, trace = entry
            if trace is not None and reply.is_final:
                trace.replied(reply)
                trace.sending()
            try:
                asker.replied(number, asked, reply)
            except Exception:  # noqa: BLE001  the rim: a fault of ours costs one connection, not all of them
                asker.give_up()
            if trace is not None and reply.is_final:
                trace.sent()


def deadline_ns(opening: Opening, deadline_s: float) -> int:
    """As a REQUEST says it: nothing where the client has not said it, but the server's patience ends then."""
    return 0 if opening.timeout_s is None else int(deadline_s * 1e9)
