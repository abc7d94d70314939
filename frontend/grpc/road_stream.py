"""ModelStreamInfer as grpcio's server does it: one thread reads requests, another asks, answers, and waits for both.

Answers of ordinary models leave in the order of their requests, those of decoupled ones as they come. What goes wrong
with a request is an answer, too, and the stream goes on. Both threads are the call's own; nothing grows without bound:
so many requests are open at once, and a worker waits that has too many answers under way.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.frontend.grpc import infer, wire
from shoal.frontend.grpc.service import GrpcCall, refuse_while_exiting, shutting_down
from shoal.frontend.grpc.stream_order import StreamOrder
from shoal.frontend.header_forwarding import forwarded_metadata
from shoal.frontend.prepared import PreparedRequest
from shoal.frontend.response import no_answer
from shoal.frontend.road.transport import PortTransport
from shoal.frontend.tracing import TracedRequest
from shoal.reasons import ModelGoneError
from shoal.shm.port import Reply

#: Requests of one stream that wait for their answers at once (ours: a stream's client keeps tens in flight).
MAX_OPEN = 256
#: What is told to the thread that answers, beside requests and replies.
_END, _GONE, _DRAIN = object(), object(), object()


class PendingRequest(NamedTuple):
    """A request that a model has."""

    message: bytes
    prepared: PreparedRequest
    ticket: int | None  # in the stream's order; None: a decoupled model's answers have none
    trace: TracedRequest | None
    deadline_s: float  # of its next answer


class RoadStream:
    """One call on the road; its `answers` are the responses."""

    def __init__(self, call: GrpcCall, transport: PortTransport) -> None:
        self._call = call
        self._transport = transport
        self._ends_at_error = call.metadata.get("triton_grpc_error") == "true"
        self._forwarded = forwarded_metadata(call.state.grpc.header_forward_pattern, call.metadata)
        self._events = transport.streamed_replies()
        self._room = threading.Semaphore(MAX_OPEN)
        # Changed by the thread that answers.
        self._order: StreamOrder[bytes | None] = StreamOrder()
        self._open: dict[int, PendingRequest] = {}  # by the request's number
        self._has_ended = False  # the client sends nothing more
        self._is_draining = False
        self._is_over = False

    # --- other threads ---

    def read(self, requests: Iterable[bytes], is_broken: type[Exception]) -> None:
        """Pass on what the client sends until it has ended; `is_broken` is raised where it is gone."""
        try:
            for message in requests:
                self._room.acquire()
                if self._is_over:
                    return
                self._events.put(message)
        except is_broken:
            return  # the thread that reads its responses is told as well
        self._events.put(_END)

    def call_off(self) -> None:
        """The client is gone, or the call was answered."""
        self._events.put(_GONE)

    def drain(self) -> None:
        """End as soon as what was asked has been answered."""
        self._events.put(_DRAIN)

    # --- the thread that answers ---

    def answers(self) -> Iterator[bytes]:
        """Every response, as it is due. Raises the ShoalError that ends the call."""
        try:
            while not (self._has_ended and self._is_idle):
                if self._is_draining and self._is_idle:
                    raise shutting_down()
                event = self._next_event()
                if event is _GONE:
                    return
                if event is _END:
                    self._has_ended = True
                elif event is _DRAIN:
                    self._is_draining = True
                elif isinstance(event, bytes):
                    yield from self._ask(event)
                elif event is not None:
                    yield from self._replied(event)
                else:
                    yield from self._expire(time.monotonic())
        finally:
            self._stop()

    @property
    def _is_idle(self) -> bool:
        return not self._open and not len(self._order)

    def _next_event(self) -> Any:
        """None where a deadline has passed."""
        timeout_s = None
        if self._open:
            timeout_s = max(0.0, min([each.deadline_s for each in self._open.values()]) - time.monotonic())
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _ask(self, message: bytes, gone: "tuple[PendingRequest, ModelGoneError] | None" = None) -> Iterator[bytes]:
        """`gone` is for a request that a model had which was reloaded before it came there."""
        ticket = None if gone is None else gone[0].ticket
        try:
            request, raws = infer.parse(message)
            refuse_while_exiting(self._call.state)
            entry = infer.find_model(self._call.state, request, is_stream=True)
            if gone is not None and gone[0].prepared.entry.model_id == entry.model_id:
                raise gone[1]
            prepared = infer.prepare(entry, request, raws, self._forwarded, self._call.state.regions)
            prepared = replace(prepared, deadline_ns=self._call.deadline_ns)
            trace = self._trace(prepared)
            number = self._transport.submit(prepared, self._events, trace)
        except ShoalError as error:
            self._room.release()
            ticket = self._order.enter() if ticket is None else ticket
            yield from self._refuse(infer.stream_error(str(error), message), error, ticket)
            return
        if ticket is None and not entry.is_decoupled:
            ticket = self._order.enter()
        self._open[number] = PendingRequest(message, prepared, ticket, trace, self._deadline_s())

    def _trace(self, prepared: PreparedRequest) -> TracedRequest | None:
        tracing, now_ns = self._call.state.tracing, time.monotonic_ns()
        trace = None if tracing is None else tracing.sample(prepared, self._call.metadata)
        if trace is not None:
            trace.received(now_ns, now_ns)
        return trace

    def _deadline_s(self) -> float:
        return time.monotonic() + self._transport.request_timeout_s

    def _replied(self, reply: Reply) -> Iterator[bytes]:
        waiting = self._open.get(reply.number)
        if waiting is None or (waiting.ticket is not None and not reply.is_final):
            self._transport.drop(reply)  # given up; or of one that answers once, where only the last is one
            return
        prepared, trace = waiting.prepared, waiting.trace
        if not reply.is_final:
            self._open[reply.number] = waiting._replace(deadline_s=self._deadline_s())
        else:
            del self._open[reply.number]
            if trace is not None:
                trace.replied(reply)
                trace.sending()
        try:
            answer = self._rendered(prepared, reply)
        except ModelGoneError as error:
            yield from self._ask(waiting.message, (waiting, error))
            return
        except ShoalError as error:
            yield from self._refuse(_error_message(prepared, error), error, waiting.ticket)
        else:
            yield from self._in_order(answer, waiting.ticket)
        if reply.is_final:
            self._room.release()
            if trace is not None:
                trace.sent()

    def _rendered(self, prepared: PreparedRequest, reply: Reply) -> bytes | None:
        """The message for a reply, where there is one. Raises the error that stands in its place."""
        answer, error, is_final = self._transport.part(prepared, reply)
        if error is not None:
            raise error
        if answer is None:
            return infer.empty_final(prepared) if prepared.wants_empty_final else None
        try:
            return b"".join(infer.render(prepared, answer.response, answer.block, final=is_final))
        finally:
            answer.release()

    def _expire(self, now_s: float) -> Iterator[bytes]:
        for number, waiting in list(self._open.items()):
            if now_s >= waiting.deadline_s:
                self._forget(number)
                self._room.release()
                error = no_answer(self._transport.request_timeout_s)
                yield from self._refuse(_error_message(waiting.prepared, error), error, waiting.ticket)

    def _forget(self, number: int) -> None:
        """Forget a request: no thread waits for it any more."""
        self._transport.cancel(number)
        trace = self._open.pop(number).trace
        if trace is not None:
            trace.end()

    def _stop(self) -> None:
        self._is_over = True
        self._room.release()  # a thread that waits to read goes on
        for number in list(self._open):
            self._forget(number)
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Reply):
                self._transport.drop(event)

    def _refuse(self, message: bytes, error: ShoalError, ticket: int | None) -> Iterator[bytes]:
        """An answer that says what went wrong; with the client's leave, the whole stream's end."""
        if self._ends_at_error:
            raise error
        yield from self._in_order(message, ticket)

    def _in_order(self, answer: bytes | None, ticket: int | None) -> Iterator[bytes]:
        for ready in [answer] if ticket is None else self._order.answer(ticket, answer):
            if ready is not None:
                yield ready


def _error_message(prepared: PreparedRequest, error: ShoalError) -> bytes:
    """The answer that a request has failed."""
    return wire.stream_error(str(error), prepared.id, prepared.entry.name, str(prepared.entry.version))
