"""How the road's threads send requests through shared memory: many request threads, one port, one listening thread.

A request thread allocates a block, fills it, submits the request and waits on a queue of its own, into which the
listening thread puts the reply (shoal/star/shared_port.py).
"""

import math
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from shoal.errors import CancelledError, ShoalError
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.kept_memory import KeptMemory
from shoal.frontend.prepared import PreparedRequest, block_nbytes, wishes_of, write_block
from shoal.frontend.response import Response
from shoal.frontend.road.hang_ups import Notify, WatchedClient
from shoal.frontend.road.held_answers import HeldAnswers, StreamedReplies
from shoal.frontend.road.kept_reply import KeptReply
from shoal.frontend.tracing import TracedRequest, Tracing
from shoal.request import InferResponse
from shoal.shm.layout import ABANDONED, NO_DIGEST
from shoal.shm.port import Reply
from shoal.star.refusal import answered, other_version
from shoal.star.request_digest import request_digest
from shoal.star.shared_port import SharedPort
from shoal.timing import as_header


class ModelResponse(NamedTuple):
    """A model's response, and the worker's block that its tensors lie in.

    The receiver either calls `release` once, or passes the HTTP response, whose chunks may be views of the block, to
    `send`, and sends the response that `send` returns, which releases the block.
    """

    response: InferResponse
    block: memoryview
    release: Callable[[], None]
    send: Callable[[Response], Response]
    other_version: int = 0  # the version that has answered, 0 if the request's own (shoal/star/refusal.py)


class StreamedResponse(NamedTuple):
    """One of the replies to a request: a response, an error, or neither, if the reply only reports the end."""

    answer: ModelResponse | None
    error: ShoalError | None
    is_final: bool


class Transport(Protocol):
    """The calls by which the road's handlers run requests on models and ask the supervisor."""

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        """Run a prepared request; waits until the request has been answered. Raises ShoalError."""
        ...

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Run a prepared request that may be answered several times; waits for each reply. Closing the generator
        cancels the request unless it has ended.

        Raises ShoalError if the first or a later reply does not come.
        """
        ...

    def several(self) -> "AbstractContextManager[Executions]":
        """A context for several requests at a time; requests that are still open at the end of the context are
        cancelled."""
        ...

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor a question; waits for the answer, at most `timeout_s`. Raises ShoalError."""
        ...


#: The queue on which a thread waits for the replies to its request, or to several requests, told apart by the replies'
#: numbers. None: the requests are given up; a WatchedClient: this client may have hung up.
Waiter: TypeAlias = queue.SimpleQueue["Reply | WatchedClient | None"]


class PortTransport:
    """A Transport over this process's port."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._port = front_end.place.port
        self._state = front_end.state
        self.request_timeout_s = front_end.place.request_timeout_s
        #: The port with its listening thread, which the code that makes this object must start.
        self.shared = SharedPort(front_end.place, self._take, front_end.apply)
        self._lock = self.shared.lock
        # Changed under the lock: the waiting threads' queues by requests' numbers; the copies for slow clients.
        self._waiting: dict[int, Waiter] = {}
        self._kept = KeptMemory()
        self._held = HeldAnswers(self._port, self._lock, self._kept)
        self._port.on_recall = lambda segments, is_urgent: self._held.recall(
            segments, time.monotonic(), is_urgent=is_urgent
        )

    # --- request threads ---

    def deadline_s(self, came_s: float | None = None) -> float:
        """When the answer to a request is due that came at `came_s`, or now if that is None (both monotonic)."""
        return (time.monotonic() if came_s is None else came_s) + self.request_timeout_s

    def infer(
        self,
        prepared: PreparedRequest,
        trace: TracedRequest | None = None,
        waiter: Waiter | None = None,
        came_s: float | None = None,
    ) -> ModelResponse:
        """Run a prepared request that came at `came_s` (see deadline_s). Raises ShoalError if there is no memory, its
        deadline has passed, or the batcher or the model reports an error."""
        waiter = queue.SimpleQueue() if waiter is None else waiter
        deadline_s = self.deadline_s(came_s)
        number = self.submit(prepared, waiter, trace, deadline_s)
        try:
            reply = self._wait(number, waiter, deadline_s)
            while not reply.is_final:  # of a model that answers once, only the last reply is the answer
                self.drop(reply)
                reply = self._wait(number, waiter, deadline_s)
        except BaseException:
            self._abandon(number, waiter)
            raise
        if trace is not None:
            trace.replied(reply)
        return self._answer(prepared, reply)

    def stream(
        self,
        prepared: PreparedRequest,
        trace: TracedRequest | None = None,
        waiter: Waiter | None = None,
        came_s: float | None = None,
    ) -> Generator[StreamedResponse, None, None]:
        """Run a prepared request that came at `came_s` (see deadline_s), see Transport.stream. The time limit of
        requests holds for the first reply, and for each later reply from the one before it on."""
        waiter = self.streamed_replies() if waiter is None else waiter
        deadline_s = self.deadline_s(came_s)
        number = self.submit(prepared, waiter, trace, deadline_s)
        is_final = False
        try:
            while not is_final:
                reply = self._wait(number, waiter, deadline_s)
                is_final = reply.is_final
                if is_final and trace is not None:
                    trace.replied(reply)
                yield self.part(prepared, reply)
                deadline_s = self.deadline_s()
        finally:
            if not is_final:
                self._abandon(number, waiter)

    @contextmanager
    def several(self, waiter: Waiter | None = None, came_s: float | None = None) -> "Iterator[Executions]":
        opened = Executions(self, queue.SimpleQueue() if waiter is None else waiter, self.deadline_s(came_s))
        try:
            yield opened
        finally:
            opened.close()

    def streamed_replies(self) -> StreamedReplies:
        """A queue for the replies to one client's streamed requests."""
        return StreamedReplies(self._held)

    def submit(
        self,
        prepared: PreparedRequest,
        replies: Waiter,
        trace: TracedRequest | None = None,
        deadline_s: float = math.inf,
    ) -> int:
        """Submit a request; waits for memory until `deadline_s` (monotonic) at most. Returns the request's number. The
        thread that takes replies from `replies` calls `part` with each."""
        start_ns = time.monotonic_ns()
        block = self.shared.allocate(block_nbytes(prepared), prepared.entry.model_id, deadline_s)
        try:
            header = write_block(prepared, block.memory)
        except BaseException:
            self.shared.free(block.ref)
            raise
        is_cached = prepared.entry.is_cached and not prepared.uses_cuda
        digest = request_digest(block.memory, header) if is_cached else NO_DIGEST
        if trace is not None:
            trace.submitted(block.memory, header)
        with self._lock:
            wishes = wishes_of(prepared) or prepared
            number = self._port.submit(prepared, wishes, block, header, start_ns, digest, prepared.deadline_ns)
            self._waiting[number] = replies
            if trace is not None:
                trace.announce(self._port, number)
            self._port.flush()
        return number

    def _wait(self, number: int, waiter: Waiter, deadline_s: float) -> Reply:
        """The next reply, if it comes by the deadline. Raises ShoalError, or an error of probing the client; then
        the request must be abandoned."""
        try:
            while isinstance(reply := waiter.get(timeout=max(0.0, deadline_s - time.monotonic())), WatchedClient):
                self.doubt(number)
                reply.probe()
        except queue.Empty:
            # The reply may have come just after the deadline, or before it while this process stood still.
            self.shared.hand_out()
            if (last := _left(waiter)) is None:
                raise self.no_answer() from None
            return last
        if reply is None:
            raise self.given_up()
        return reply

    def no_answer(self) -> ShoalError:
        """The error for a request that has had no answer in time."""
        return self._state.no_answer(self.request_timeout_s)

    def given_up(self) -> ShoalError:
        """The error for a request that is given up because its client has hung up, or because the server ends."""
        if self._state.gives_up:
            return self._state.no_answer(self.request_timeout_s)
        return CancelledError("Request was cancelled")

    def refuse_all(self) -> None:
        """Refuse all open requests, those that wait for the supervisor, too: the server ends."""
        with self._lock:
            for replies in self._waiting.values():
                replies.put(None)
        self.shared.lose(self._state.no_answer(0.0))

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        return self.shared.ask(verb, arguments, timeout_s)

    def count_answer(self, status: int) -> None:
        """Count a response of TorchServe's protocol."""
        with self._lock:
            self._port.answered[status // 100] += 1

    def count_abandoned(self) -> None:
        """Count a request that was not begun, since its client has gone."""
        with self._lock:
            self._port.noted[ABANDONED] += 1

    def _abandon(self, number: int, waiter: Waiter) -> None:
        """Cancel a request whose thread no longer waits, and drop its replies, both those in the queue and later
        ones."""
        self.cancel(number)
        while (reply := _left(waiter)) is not None:
            self.drop(reply)

    def cancel(self, number: int) -> None:
        """Cancel a request. Replies that have come already are still in the request's queue; the calling code must
        `drop` them."""
        with self._lock:
            if self._waiting.pop(number, None) is not None:
                self._port.cancel(number)
                self._port.flush()

    def doubt(self, number: int) -> None:
        """Notify the model at work that the client may be gone."""
        with self._lock:
            self._port.cancel(number, is_sure=False)
            self._port.flush()

    def drop(self, reply: Reply | None) -> None:
        """Release a reply's block without reading it."""
        if isinstance(reply, KeptReply):
            with self._lock:
                reply.forget()
        elif reply is not None and reply.block is not None:
            self._release_number(reply.number, reply.part)

    def part(self, prepared: PreparedRequest, reply: Reply) -> StreamedResponse:
        """The response or the error in a reply to this request."""
        if reply.is_final and reply.is_empty:
            self.drop(reply)
            return StreamedResponse(None, None, is_final=True)
        try:
            return StreamedResponse(self._answer(prepared, reply), None, reply.is_final)
        except ShoalError as error:
            # Without the traceback, which refers to the reply, and so to the worker's memory.
            return StreamedResponse(None, error.with_traceback(None), reply.is_final)

    def _answer(self, prepared: PreparedRequest, reply: Reply) -> ModelResponse:
        try:
            _, response, block = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
        except BaseException:
            self.drop(reply)
            raise
        if isinstance(reply, KeptReply):
            kept = partial(self.drop, reply), partial(self._send_kept, reply)
            return ModelResponse(response, block, *kept, other_version(reply))
        # Only the numbers: a reference to the reply in these functions would keep the reply's memory.
        number, part = reply.number, reply.part
        release = partial(self._release_number, number, part)
        send = lambda made: self._held.send(made, number, part)  # noqa: E731
        return ModelResponse(response, block, release, send, other_version(reply))

    def _send_kept(self, reply: KeptReply, made: Response) -> Response:
        """Does for a copied reply what HeldAnswers.send does for a block: `made` is complete, so the copy is no longer
        kept."""
        self.drop(reply)
        return made

    def _release_number(self, number: int, part: int) -> None:
        with self._lock:
            self._port.release(number, part)
            self._port.flush()

    # --- the listening thread ---

    def _take(self, reply: Reply) -> None:
        """Put a reply into the queue of the thread that waits for it; release the reply if no thread does. The
        listening thread calls this."""
        waiter = self._waiting.get(reply.number)
        if reply.is_final:
            self._waiting.pop(reply.number, None)
        if waiter is not None:
            waiter.put(reply)
        elif reply.block is not None:
            self._port.release(reply.number, reply.part)


class WatchedTransport:
    """A transport for one client's request, which came at `came_s` (see PortTransport.deadline_s), and is cancelled
    when the client hangs up."""

    def __init__(
        self,
        transport: PortTransport,
        watch: Callable[[Notify], AbstractContextManager[None]],
        came_s: float | None = None,
    ) -> None:
        self._transport = transport
        self._watch = watch
        self._came_s = came_s

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        """Run a prepared request, see Transport.infer; it is cancelled when the client hangs up."""
        waiter: Waiter = queue.SimpleQueue()
        with self._watch(waiter.put):
            return self._transport.infer(prepared, trace, waiter, self._came_s)

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Run a prepared request, see Transport.stream; it is cancelled when the client hangs up."""
        waiter = self._transport.streamed_replies()
        with self._watch(waiter.put):
            yield from self._transport.stream(prepared, trace, waiter, self._came_s)

    @contextmanager
    def several(self) -> "Iterator[Executions]":
        """Run several requests, see Transport.several; they are cancelled when the client hangs up."""
        waiter: Waiter = queue.SimpleQueue()
        with self._watch(waiter.put), self._transport.several(waiter, self._came_s) as opened:
            yield opened

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        return self._transport.ask(verb, arguments, timeout_s)


class Executions:
    """Requests for one client that are executed at the same time, within the context of `several`. One thread at a
    time."""

    def __init__(self, transport: PortTransport, waiter: Waiter, deadline_s: float) -> None:
        self._transport = transport
        self._waiter = waiter
        self._deadline_s = deadline_s
        # Changed by start, next and cancel: the open requests by number.
        self._open: dict[int, PreparedRequest] = {}

    def start(self, prepared: PreparedRequest, *, in_time: bool = False) -> int:
        """Submit a request; returns its number. Waits for memory without a limit or, with `in_time`, until the deadline
        of `next_in_time`. Raises ShoalError."""
        deadline_s = self._deadline_s if in_time else math.inf
        number = self._transport.submit(prepared, self._waiter, deadline_s=deadline_s)
        self._open[number] = prepared
        return number

    def next(self, limit_s: float) -> tuple[int, StreamedResponse] | None:
        """Wait for the next reply to any open request; None after `limit_s`. Raises CancelledError if the client has
        hung up, and UnavailableError if the server ends."""
        end_s, is_late = time.monotonic() + limit_s, False
        while True:
            try:
                reply = self._waiter.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                if is_late:
                    return None
                is_late = True
                self._transport.shared.hand_out()  # replies that came during a standstill are in no queue yet
                continue
            if reply is None:
                raise self._transport.given_up()
            if not isinstance(reply, Reply):
                for number in self._open:
                    self._transport.doubt(number)
                reply.probe()
                continue
            prepared = self._open.get(reply.number)
            if prepared is None:  # cancelled while this reply was on its way
                self._transport.drop(reply)
                continue
            if reply.is_final:
                del self._open[reply.number]
            return reply.number, self._transport.part(prepared, reply)

    def next_in_time(self) -> tuple[int, StreamedResponse]:
        """Like `next`, but all replies together must come within the server's time limit; raises UnavailableError after
        it."""
        found = self.next(max(0.0, self._deadline_s - time.monotonic()))
        if found is None:
            raise self._transport.no_answer()
        return found

    def cancel(self, number: int) -> None:
        """Cancel an open request; no reply to it comes any more."""
        if self._open.pop(number, None) is not None:
            self._transport.cancel(number)

    def close(self) -> None:
        """Cancel open requests, and drop replies that have come."""
        for number in tuple(self._open):
            self.cancel(number)
        while (reply := _left(self._waiter)) is not None:
            self._transport.drop(reply)


def _left(waiter: Waiter) -> Reply | None:
    """A reply that is in the queue already, or None."""
    while not waiter.empty():
        if isinstance(reply := waiter.get_nowait(), Reply):
            return reply
    return None


class TracedTransport:
    """A Transport for one request that may be traced: notes the times of the request's events. `begun_ns` is when the
    request's head had come; the transport is made when its body has come, too."""

    def __init__(self, transport: Transport, tracing: Tracing, headers: Mapping[str, str], begun_ns: int) -> None:
        self._transport = transport
        self._tracing = tracing
        self._headers = headers
        self._received_ns = begun_ns, time.monotonic_ns()
        # Changed by infer and stream: the request's trace, once it has begun.
        self._trace: TracedRequest | None = None

    def infer(self, prepared: PreparedRequest, trace: TracedRequest | None = None) -> ModelResponse:
        """Run a prepared request, see Transport.infer; its trace begins here if it is to be traced."""
        return self._transport.infer(prepared, self._traced(prepared, trace))

    def stream(
        self, prepared: PreparedRequest, trace: TracedRequest | None = None
    ) -> Generator[StreamedResponse, None, None]:
        """Run a prepared request, see Transport.stream; its trace begins here if it is to be traced."""
        return self._transport.stream(prepared, self._traced(prepared, trace))

    def _traced(self, prepared: PreparedRequest, trace: TracedRequest | None) -> TracedRequest | None:
        self._trace = trace or self._tracing.sample(prepared, self._headers)
        if self._trace is not None:
            self._trace.received(*self._received_ns)
        return self._trace

    def several(self) -> AbstractContextManager[Executions]:
        """Run several requests, see Transport.several; they are not traced."""
        return self._transport.several()

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        return self._transport.ask(verb, arguments, timeout_s)

    def ending_trace(self, response: Response) -> Response:
        """The response with a `close` that also ends the trace. Notes in the trace that sending begins."""
        trace, close = self._trace, response.close
        if trace is None:
            return response

        def sent() -> None:
            if close is not None:
                close()
            trace.sent()

        trace.sending()
        headers = response.headers
        if trace.is_shown:
            headers = (*headers, ("Server-Timing", as_header(trace.timing())))
        return response._replace(headers=headers, close=sent)
