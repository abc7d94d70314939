"""The requests of a gRPC lane that wait for a model, and the calls that wait for their answers. One thread, the
lane's."""

import time
from collections.abc import Sequence

from shoal.frontend.grpc.call import AskingCall, Opening
from shoal.frontend.grpc.framing import decompress
from shoal.frontend.grpc.inbox import ReceivedMessage
from shoal.frontend.grpc.inference_protocol import AskedMessage
from shoal.frontend.grpc.service import refuse_while_exiting
from shoal.frontend.grpc.submission import GrpcSubmission, MessageTemplate, RegionTemplate
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.state import ServerState
from shoal.frontend.tracing import TracedRequest, or_untraced
from shoal.frontend.v2.compression import ExpansionLimitError
from shoal.shm.port import Port
from shoal.timing import as_header

#: The size, in decompressed bytes, of the largest message that the lane itself decompresses: gzip takes 4 ms a MB,
#: during which no other call is served.
MAX_UNPACKED_BYTES = 1 << 20


class Inference:
    """All requests in flight of one lane."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port
        self.submission = GrpcSubmission(state, port, state.grpc.header_forward_pattern)
        #: Releases the block of a reply, which must no longer be read.
        self.release = port.release
        # Changed by ask, forget and deliver: the calls that wait for replies, by the request's number.
        self._waiting: dict[int, tuple[AskingCall, AskedMessage, TracedRequest | None] | None] = {}

    def ask(
        self,
        asker: AskingCall,
        opening: Opening,
        received: ReceivedMessage,
        begun_s: float,
        deadline_s: float,
        *,
        is_stream: bool,
    ) -> tuple[int, AskedMessage]:
        """Submit a request whose message has been received; `asker` is called with its replies. Returns the request's
        number, and its AskedMessage. Raises ShoalError, after freeing the message's block, if the request is refused;
        raises RoadOnlyError for a unary call's request that only the road can answer.

        `deadline_s` (monotonic) is passed on to the batcher if the client gave a deadline.
        """
        data, block, offset, is_compressed = received
        if self._state.exiting:
            if block is not None:
                self._port.slab.free(block.ref)
            refuse_while_exiting(self._state)
        if is_compressed:
            try:
                data = decompress(opening.encoding, data, MAX_UNPACKED_BYTES)
            except ExpansionLimitError as error:
                if is_stream:
                    raise
                raise RoadOnlyError(str(error)) from None
        number, asked = opening.protocol.submit(
            data,
            opening.metadata,
            block,
            offset,
            is_stream=is_stream,
            deadline_ns=deadline_ns(opening, deadline_s),
            key=opening.key,
        )
        self._wait(asker, number, asked, opening, begun_s)
        return number, asked

    def ask_known(
        self,
        asker: AskingCall,
        template: MessageTemplate | RegionTemplate,
        id_: bytes,
        tensors: Sequence[bytes],
        opening: Opening,
        begun_s: float,
        deadline_s: float,
    ) -> int:
        """Submit a request of a known template that is still valid; returns its number. Other arguments are as in
        `ask`. Raises ShoalError if the request is refused."""
        if self._state.exiting:
            refuse_while_exiting(self._state)
        number, asked = self.submission.submit_known(
            template, id_, tensors, time.monotonic_ns(), deadline_ns(opening, deadline_s)
        )
        self._wait(asker, number, asked, opening, begun_s)
        return number

    @property
    def is_exiting(self) -> bool:
        """Whether the server is ending, so that requests are refused."""
        return self._state.exiting

    def asked(self, number: int) -> AskedMessage | None:
        """The kept part of a request that waits for replies; None if no request of this number waits."""
        waiting = self._waiting.get(number)
        return None if waiting is None else waiting[1]

    def _wait(self, asker: AskingCall, number: int, asked: AskedMessage, opening: Opening, begun_s: float) -> None:
        is_traced = self._state.tracing is not None or opening.wants_timing
        trace = self._trace(number, asked, opening, begun_s) if is_traced else None
        self._waiting[number] = asker, asked, trace

    def _trace(self, number: int, asked: AskedMessage, opening: Opening, begun_s: float) -> TracedRequest | None:
        """Begin a request's trace, if it is sampled or its client asks for its times."""
        tracing = or_untraced(self._state.tracing, self._state.models.names)
        trace = tracing.sample(asked.prepared, opening.metadata)
        if trace is not None:
            block, span, start_ns = self._port.submitted(number)
            trace.received(int(begun_s * 1e9), start_ns)
            trace.submitted(block, span)
            trace.announce(self._port, number)
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
        """Release the reply of a token, once its last byte has been sent."""
        self._port.release(*token)

    def deliver(self) -> None:
        """Pass each reply that has come to its call."""
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
                if trace is not None and trace.is_shown and reply.is_final:
                    asker.replied(number, asked, reply, as_header(trace.timing()))
                else:
                    asker.replied(number, asked, reply)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all
                asker.give_up()
            if trace is not None and reply.is_final:
                trace.sent()


def deadline_ns(opening: Opening, deadline_s: float) -> int:
    """The deadline for a REQUEST, in monotonic ns; 0 if the client gave no deadline, so that only the server's limit
    holds."""
    return 0 if opening.timeout_s is None else int(deadline_s * 1e9)
