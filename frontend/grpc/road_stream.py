"""ModelStreamInfer on grpcio's server: one thread reads requests, another submits them, answers, and waits for both.

Answers of ordinary models leave in the order of their requests, those of decoupled ones as they come. A request's error
is an answer, too, and the stream goes on. Both threads are the call's own; all queues are bounded: a stream has a limit
of open requests, and a worker waits that has too many answers under way.
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
#: Events for the thread that answers, beside requests and replies.
_END, _GONE, _DRAIN = object(), object(), object()


class Waiting(NamedTuple):
    """A request that a model has."""

    message: bytes
    prepared: PreparedRequest
    ticket: int | None  # in the stream's order; None: a decoupled model's answers have none
    trace: TracedRequest | None
    deadline_s: float  # of the request's next answer


class Stream:
    """One streaming call on the road; `answers` yields its responses."""

    def __init__(self, call: GrpcCall, transport: PortTransport) -> None:
        self._call = call
        self._transport = transport
        self._ends_at_error = call.metadata.get("triton_grpc_error") == "true"
        self._forwarded = forwarded_metadata(call.state.grpc.header_forward_pattern, call.metadata)
        self._events = transport.streamed_replies()
        self._room = threading.Semaphore(MAX_OPEN)
        # Changed by the thread that answers.
        self._order: StreamOrder[bytes | None] = StreamOrder()
        self._open: dict[int, Waiting] = {}  # by the request's number
        self._has_ended = False  # the client sends nothing more
        self._is_draining = False
        self._is_over = False

    # --- other threads ---

    def read(self, requests: Iterable[bytes], is_broken: type[Exception]) -> None:
        """Pass on the client's messages until it has ended; `is_broken` is the exception that means that the client
        is gone."""
        try:
            for message in requests:
                self._room.acquire()
                if self._is_over:
                    return
                self._events.put(message)
        except is_broken:
            return  # the thread that answers is notified by `call_off`
        self._events.put(_END)

    def call_off(self) -> None:
        """End the stream, because the client is gone or the call was answered."""
        self._events.put(_GONE)

    def drain(self) -> None:
        """End the stream as soon as all requests that have come are answered."""
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
        """The next event; None if a deadline has passed."""
        timeout_s = None
        if self._open:
            timeout_s = max(0.0, min([each.deadline_s for each in self._open.values()]) - time.monotonic())
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _ask(self, message: bytes, gone: "tuple[Waiting, ModelGoneError] | None" = None) -> Iterator[bytes]:
        """Submit a request. `gone` is for one that was sent to a model which was reloaded before the request came
        there."""
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
        self._open[number] = Waiting(message, prepared, ticket, trace, self._deadline_s())

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
            self._transport.drop(reply)  # a request given up, or not the last reply of a model that answers once
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
            yield from self._refuse(_told(prepared, error), error, waiting.ticket)
        else:
            yield from self._in_order(answer, waiting.ticket)
        if reply.is_final:
            self._room.release()
            if trace is not None:
                trace.sent()

    def _rendered(self, prepared: PreparedRequest, reply: Reply) -> bytes | None:
        """The message for a reply, None if there is none to send. Raises the reply's error."""
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
                yield from self._refuse(_told(waiting.prepared, error), error, waiting.ticket)

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
        """Answer a request with an error or, if the client asked for that, end the whole stream with it."""
        if self._ends_at_error:
            raise error
        yield from self._in_order(message, ticket)

    def _in_order(self, answer: bytes | None, ticket: int | None) -> Iterator[bytes]:
        for ready in [answer] if ticket is None else self._order.answer(ticket, answer):
            if ready is not None:
                yield ready


def _told(prepared: PreparedRequest, error: ShoalError) -> bytes:
    """The message that reports a failed request."""
    return wire.stream_error(str(error), prepared.id, prepared.entry.name, str(prepared.entry.version))
